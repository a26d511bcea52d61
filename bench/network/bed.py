"""What the benchmarks across hosts share: hosts made of network namespaces (testbed/testbed), and a training on them."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
BED = {"TESTBED": "cnet", "TESTBED_NET": "10.77.8"}


def bed(*words, **options):
    """Runs testbed/testbed and returns what it prints."""
    command = [ROOT / "testbed/testbed", *map(str, words)]
    return subprocess.run(command, env={**os.environ, **BED}, check=True, text=True, stdout=subprocess.PIPE, **options).stdout


@contextlib.contextmanager
def hosts(count, rate):
    """So many hosts behind links of a rate, removed at the end."""
    bed("down")
    bed("up", count, rate)
    try:
        yield
    finally:
        bed("down")


def bytes_of(host):
    """Bytes received and sent on a host's link so far."""
    received, sent = map(int, bed("bytes", host).split())
    return received, sent


@dataclasses.dataclass
class Training:
    """A training on the hosts: its report, the lines of its metrics, and the bytes of every host's link, (received, sent)."""

    report: dict
    metrics: list
    links: list

    def part_ms(self, part):
        """Milliseconds a step that rank 0 spent on a part of it."""
        return 1e3 * dict(self.report["parts_seconds"])[part] / self.report["steps"]


def train(campanile, folder, text, host_count, ranks_per_host):
    """Trains the job of this text once. Packed data stays in `folder`, everything else is new."""
    path, report, hostfile = folder / "job.toml", folder / "report.json", folder / "hosts"
    path.write_text(text + f'\ncache_dir = "{folder}/cache"\noutput_dir = "{folder}/output"\n')
    shutil.rmtree(folder / "output", ignore_errors=True)
    hostfile.write_text(bed("hostfile", ranks_per_host))
    before = [bytes_of(host) for host in range(host_count)]
    bed("on", 0, "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", host_count * ranks_per_host,
        "--hostfile", hostfile, *bed("mpirun-options").split(), campanile, "train", path, "--quiet", "--report", report)
    links = [tuple(b - a for a, b in zip(old, bytes_of(host))) for host, old in enumerate(before)]
    metrics = [json.loads(line) for line in (folder / "output/metrics.jsonl").read_text().splitlines()]
    return Training(json.loads(report.read_text()), metrics, links)
