"""Scores with ours, PyTorch and onnxruntime in turns, one thread each, and prints latencies and their ratio.

Usage: compare_scoring.py [--config kaggle|terabyte] [--precision f32|bf16] [--rounds N] [--seconds S] [--save FILE]; `--help`
lists the rest. Build `campanile` in release mode first, or name it with `--ours`. A round is one turn for each competitor and
batch size, in an order that rotates; a ratio is taken inside a round, so load that slows all of them cancels. With
`--precision bf16` the peers run in bfloat16 and, because that may be slower, in f32 too: the best of all counts.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from statistics import median

import machine
import torch_settings

HERE = Path(__file__).resolve().parent
OURS = "target/release/campanile bench score"
VARIANTS = {
    "f32": ["eager", "jit", "compile", "freeze", "ort"],
    "bf16": ["eager-bf16", "eager-autocast", "compile-bf16", "freeze-bf16", "freeze", "ort"],
}

# The least ratio of the best peer's p50 and p99 to ours (f32), and of our throughput in large batches to theirs.
LATENCY_GOAL = 2.0
THROUGHPUT_GOALS = {"f32": 1.5, "bf16": 2.5}
LARGE_BATCH = 512


class Peer:
    """A process that answers `go`."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None):
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env={**os.environ, **(environment or {})},
        )
        line = self.process.stdout.readline()
        while not line.startswith("ready"):
            if not line:
                raise SystemExit(f"`{shlex.join(command)}` ended before it was ready")
            line = self.process.stdout.readline()
        self.about = json.loads(line[5:].strip() or "{}")

    def go(self, *words) -> dict:
        self.process.stdin.write("go " + " ".join(map(str, words)) + "\n")
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--config", default="kaggle", choices=["kaggle", "terabyte"])
    flags.add_argument("--precision", default="f32", choices=list(VARIANTS))
    flags.add_argument("--batch", default="1,64,512")
    flags.add_argument("--rounds", type=int, default=7)
    flags.add_argument("--seconds", type=float, default=0.5)
    flags.add_argument("--shrink", type=int, help="divide table rows; 4 for terabyte, so that three copies fit")
    flags.add_argument("--ours", default=OURS)
    flags.add_argument("--ours-also", default="", help="flags of further variants of ours, separated by commas")
    flags.add_argument("--variants", help="of the peers, separated by commas; scoring_peer.py explains them")
    flags.add_argument("--save", help="append every round as a line of JSON")
    arguments = flags.parse_args()
    shrink = arguments.shrink or (4 if arguments.config == "terabyte" else 1)
    variants = arguments.variants.split(",") if arguments.variants else VARIANTS[arguments.precision]
    shared = ["--config", arguments.config, "--shrink", str(shrink), "--batch", arguments.batch]
    own = [*shlex.split(arguments.ours), *shared, "--precision", arguments.precision, "--serve-rounds"]
    ours = {"ours": Peer(own)}
    for extra in filter(None, arguments.ours_also.split(",")):
        ours[f"ours {extra}"] = Peer([*own, *shlex.split(extra)])
    settings = torch_settings.find(sys.executable)
    print("\n".join(settings.notes))
    words = [sys.executable, str(HERE / "scoring_peer.py"), *shared, "--variants", ",".join(variants)]
    peer = Peer(words, settings.environment)
    turns = [(name, one, []) for name, one in ours.items()]
    turns += [(variant, peer, [variant]) for variant in variants]
    found: dict = {}
    for number in range(arguments.rounds):
        for batch in arguments.batch.split(","):
            for place in range(len(turns)):
                name, one, words = turns[(place + number) % len(turns)]
                machine.wait_for_quiet(1.0)
                answer = one.go(arguments.seconds, batch, *words)
                found.setdefault((batch, name), []).append(answer)
                if arguments.save:
                    line = {"config": arguments.config, "precision": arguments.precision, "batch": int(batch), "who": name}
                    line |= {"round": number, **answer}
                    with open(arguments.save, "a", encoding="utf-8") as file:
                        file.write(json.dumps(line) + "\n")
    show(arguments, found, [name for name, _, _ in turns], {**machine.describe(), **peer.about, "shrink": shrink})
    for one in {id(p): p for _, p, _ in turns}.values():
        one.end()


def show(arguments, found: dict, names: list[str], about: dict) -> None:
    print(f"{arguments.config}, {arguments.precision}: {json.dumps(about)}")
    print("| samples | who | p50 us | p99 us | min us | samples/s | best peer's p50 / this | p99 |")
    print("|---|---|---|---|---|---|---|---|")
    peers = [name for name in names if not name.startswith("ours")]
    for batch in arguments.batch.split(","):
        def middle(name, key):
            return median(answer[key] for answer in found[batch, name])

        best = {key: min(peers, key=lambda name: middle(name, key)) for key in ["p50_us", "p99_us"]}
        for name in names:
            def ratio(key):
                pairs = zip(found[batch, best[key]], found[batch, name])
                return median(theirs[key] / own[key] for theirs, own in pairs)

            p50 = middle(name, "p50_us")
            print(
                f"| {batch} | {name} | {p50:.1f} | {middle(name, 'p99_us'):.1f} | {middle(name, 'min_us'):.1f} "
                f"| {int(batch) / p50 * 1e6:,.0f} | {ratio('p50_us'):.2f} ({best['p50_us']}) "
                f"| {ratio('p99_us'):.2f} ({best['p99_us']}) |"
            )
        # What the model's multiplications and additions alone take on this core, measured between our own requests.
        limit, ours, theirs = middle("ours", "limit_p50_us"), middle("ours", "p50_us"), middle(best["p50_us"], "p50_us")
        print(
            f"| {batch} | limit | {limit:.1f} | | {middle('ours', 'limit_min_us'):.1f} | {int(batch) / limit * 1e6:,.0f} "
            f"| ours reaches {100 * limit / ours:.0f} % of it, {best['p50_us']} {100 * limit / theirs:.0f} % | |"
        )
    for line in goals(arguments.precision, found, peers):
        print(line)


def goals(precision: str, found: dict, peers: list[str]):
    """A line for each goal: its ratio inside the rounds, and whether it is met."""
    for batch in sorted({int(batch) for batch, _ in found}):
        def ratio(key):
            theirs = {name: found[str(batch), name] for name in peers}
            best = min(peers, key=lambda name: median(answer[key] for answer in theirs[name]))
            ratios = [peer[key] / own[key] for peer, own in zip(theirs[best], found[str(batch), "ours"])]
            return median(ratios), min(ratios), max(ratios), best

        wanted = [(key, LATENCY_GOAL) for key in ["p50_us", "p99_us"] if precision == "f32"]
        if batch == LARGE_BATCH:
            wanted.append(("samples_per_second", THROUGHPUT_GOALS[precision]))
        for key, goal in wanted:
            # Throughput is told by the median time of a request: samples are the same for all.
            middle, least, most, best = ratio("p50_us" if key == "samples_per_second" else key)
            verdict = "met" if middle >= goal else "NOT met"
            yield f"goal, {batch} samples, {key}: {middle:.2f}x of {best} ({least:.2f}-{most:.2f}), wanted {goal}x: {verdict}"


if __name__ == "__main__":
    main()
