"""What the machine is and how busy it was: a figure without these says little."""

import os
import re
import time
from pathlib import Path

# Foreign work above this many cores disturbs a turn.
DISTURBING_CORES = 0.1


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def memory_bytes(key: str) -> int:
    """`MemTotal` or `MemAvailable`."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def busy_seconds() -> float:
    """CPU seconds used by everybody since boot, time stolen by the hypervisor included."""
    user, nice, system, _idle, _wait, irq, softirq, steal = map(
        int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    )
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def process_seconds(pid: int) -> float:
    """CPU seconds used by all threads of a process."""
    # The name in parentheses may hold spaces; what follows it does not.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for_quiet(seconds_max: float, window_s: float = 0.1) -> None:
    """Returns when the others have left the machine alone for a moment, or when waiting has taken too long."""
    end = time.monotonic() + seconds_max
    while time.monotonic() < end:
        busy = busy_seconds()
        time.sleep(window_s)
        if busy_seconds() - busy <= max(2 * DISTURBING_CORES * window_s, 0.011):
            return


def describe() -> dict:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "memory_gib": round(memory_bytes("MemTotal") / 2**30, 1),
        "load": [round(load, 2) for load in os.getloadavg()],
        "huge_pages": Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text().strip(),
    }


def slug() -> str:
    """A folder's name for this machine, such as `amd-epyc-2-cores`."""
    words = re.sub(r"\(r\)|\(tm\)|cpu|processor|@.*", " ", cpu_model().lower())
    return "-".join(re.findall(r"[a-z0-9.]+", words) + [str(os.cpu_count()), "cores"])
