"""A pretended competitor for the driver's own tests: speaks the protocol, trains nothing. Never a result."""

import json
import os
import sys
import time


def main() -> None:
    behaviour = os.environ.get("STAND_IN", "")
    batch = int(sys.argv[sys.argv.index("--batch") + 1])
    if behaviour == "dies":
        sys.exit("stand-in: told to die")
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = float(line.split()[1])
        if behaviour == "babbles":
            print("nonsense", flush=True)
            continue
        if behaviour == "hangs":
            time.sleep(3600)
        print(json.dumps({"samples": 100 * batch, "wall_s": seconds, "cpu_s": seconds}), flush=True)


if __name__ == "__main__":
    main()
