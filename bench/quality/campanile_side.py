"""Runs Campanile on a job and reads its report."""

import json
import subprocess
from pathlib import Path

from metrics import Quality


class CampanileFailed(Exception):
    """It ended with an error, or its report lacks what is needed."""


def read_quality(report: dict, split: str) -> Quality:
    """The only place that knows the keys of `campanile train --report`."""
    try:
        scores = report["evaluation"][split]["tasks"][0]
        return Quality(float(scores["ne"]), float(scores["logloss"]), float(scores["auc"]))
    except (KeyError, IndexError, TypeError) as missing:
        raise CampanileFailed(f"the report has no scores of the {split} split: {missing!r}") from None


def train(binary: str, job: Path, threads: int, timeout_s: float) -> dict[str, Quality]:
    """Trains once, from the start; the qualities of `valid` and `test` at the end."""
    report = job.with_suffix(".report.json")
    report.unlink(missing_ok=True)
    command = [binary, "train", str(job), "--fresh", "--quiet", "--threads", str(threads), "--report", str(report)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise CampanileFailed(str(failure)) from None
    if done.returncode != 0 or not report.exists():
        raise CampanileFailed(f"code {done.returncode}: {(done.stderr or done.stdout).strip()[-600:]}")
    content = json.loads(report.read_text())
    return {split: read_quality(content, split) for split in ("valid", "test")}
