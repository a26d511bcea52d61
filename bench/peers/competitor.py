"""A competitor is a process that trains when told to, for about as long as told to, and says what it did.

The protocol stands in `README.md`. A competitor that dies or goes silent ends its own part, never the run:
whatever goes wrong is a `CompetitorFailed` with the end of what it wrote to stderr.
"""

import json
import os
import queue
import re
import shlex
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass

import machine


class CompetitorFailed(Exception):
    """It died, went silent or answered nonsense."""


def without_folders(text: str) -> str:
    """Paths cut to their last part: what is kept as a result should not tell where it was made."""
    return re.sub(r"(?:/[\w.+-]+)+/", "", text)


@dataclass(frozen=True)
class Round:
    """What one `go` achieved."""

    samples: int
    wall_s: float
    cpu_s: float
    # What everybody else used meanwhile, idle competitors included.
    foreign_cores: float

    def undisturbed(self) -> bool:
        return self.foreign_cores <= machine.DISTURBING_CORES

    def per_wall_second(self) -> float:
        return self.samples / self.wall_s

    def per_cpu_second(self) -> float:
        return self.samples / max(self.cpu_s, 1e-9)


class Competitor:
    """One process. Use as a context manager, so that no process outlives its configuration."""

    def __init__(self, command: list[str], environment: dict[str, str]):
        self.command = command
        self.errors = tempfile.TemporaryFile(mode="w+", errors="replace")
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            bufsize=1,
            env={**os.environ, **environment},
        )
        self.lines: queue.Queue[str | None] = queue.Queue(maxsize=1000)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def __enter__(self) -> "Competitor":
        return self

    def __exit__(self, *_) -> None:
        try:
            self.process.stdin.close()
            self.process.wait(timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.reader.join(timeout=10)
        self.process.stdout.close()
        self.errors.close()

    def wait_ready(self, timeout_s: float) -> dict:
        """Waits for `ready`; what stands behind it is the competitor's description of itself."""
        while True:
            line = self._line(timeout_s, "to be ready")
            word, _, rest = line.strip().partition(" ")
            if word == "ready":
                return json.loads(rest) if rest else {}

    def go(self, seconds: float, timeout_s: float, variant: str | None = None) -> Round:
        """Lets it train for about `seconds`."""
        begin, foreign = time.perf_counter(), self._foreign_seconds()
        try:
            self.process.stdin.write(f"go {seconds:g}" + (f" {variant}" if variant else "") + "\n")
            self.process.stdin.flush()
        except OSError:
            raise CompetitorFailed(self._obituary("died")) from None
        line = self._line(timeout_s, f"to answer `go {seconds:g}`")
        try:
            answer = json.loads(line)
            foreign = max(0.0, self._foreign_seconds() - foreign) / (time.perf_counter() - begin)
            return Round(int(answer["samples"]), float(answer["wall_s"]), float(answer["cpu_s"]), round(foreign, 3))
        except (ValueError, KeyError, TypeError):
            raise CompetitorFailed(self._obituary(f"answered {line.strip()[:120]!r}")) from None

    def _foreign_seconds(self) -> float:
        try:
            return machine.busy_seconds() - machine.process_seconds(self.process.pid)
        except OSError:
            raise CompetitorFailed(self._obituary("died")) from None

    def _line(self, timeout_s: float, purpose: str) -> str:
        try:
            line = self.lines.get(timeout=timeout_s)
        except queue.Empty:
            self.process.kill()
            raise CompetitorFailed(self._obituary(f"took more than {timeout_s:g} s {purpose}")) from None
        if line is None:
            self.process.wait()
            raise CompetitorFailed(self._obituary(f"ended with code {self.process.returncode}"))
        return line

    def _obituary(self, what: str) -> str:
        self.errors.flush()
        self.errors.seek(0)
        last = self.errors.read().strip().splitlines()[-3:]
        return without_folders(f"`{shlex.join(self.command)}` {what}" + (": " + " | ".join(last) if last else ""))
