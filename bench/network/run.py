#!/usr/bin/env python3
"""Pipeline and codecs across hosts: network namespaces on this machine behind shaped links (testbed/testbed).

    bench/network/run.py [--hosts 2] [--ranks-per-host 1] [--rate auto] [--rounds 5] [--job bench/network/job.toml]

Needs root, iproute2 and Open MPI. Trains the job in turns, with and without the pipeline and with every codec, and
prints a Markdown table: milliseconds a step, the seconds of a step that rank 0 waited for others, and megabytes a step that one
host sent, as its link counts them. Ratios are medians over the rounds, each against the same round without pipeline and codec.
All ways of one codec must end with the same metrics: the script fails if they do not. The rate `auto` is the one at which the
bytes of a step take as long on the link as a step without a limit takes altogether; a first training finds it.
"""

import argparse
import json
import pathlib
import statistics
import tempfile

from bed import ROOT, hosts, train

WAYS = [
    ("off", "f32", "f32"),
    ("on", "f32", "f32"),
    ("off", "f16", "bf16"),
    ("on", "f16", "bf16"),
    ("on", "int8", "int8"),
]


def job(path, way):
    pipeline, forward, backward = way
    text = path.read_text()
    text += f'\n[run.exchange]\nforward = "{forward}"\nbackward = "{backward}"\n'
    return text + f'\n[process]\npipeline = "{pipeline}"\n'


def balanced_rate(arguments, folder):
    """The rate at which a step's bytes travel as long as the step computes."""
    with hosts(arguments.hosts, "40gbit"):
        run = train(arguments.campanile, folder, job(arguments.job, WAYS[0]), arguments.hosts, arguments.ranks_per_host)
    return f"{round(8e-6 * run.links[1][1] / run.report['seconds'])}mbit"


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--hosts", type=int, default=2)
    arguments.add_argument("--ranks-per-host", type=int, default=1)
    arguments.add_argument("--rate", default="auto")
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--job", type=pathlib.Path, default=ROOT / "bench/network/job.toml")
    arguments.add_argument("--campanile", type=pathlib.Path, default=ROOT / "target/release/campanile", help="built with --features mpi")
    arguments = arguments.parse_args()
    steps, waits, megabytes = ({way: [] for way in WAYS} for _ in range(3))
    metrics = {}
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        if arguments.rate == "auto":
            arguments.rate = balanced_rate(arguments, folder)
        with hosts(arguments.hosts, arguments.rate):
            for _ in range(arguments.rounds):
                for way in WAYS:
                    run = train(arguments.campanile, folder, job(arguments.job, way), arguments.hosts, arguments.ranks_per_host)
                    report = run.report
                    steps[way].append(1e3 * report["seconds"] / report["steps"])
                    waits[way].append(run.part_ms("exchange"))
                    megabytes[way].append(run.links[1][1] / 1e6 / report["steps"])
                    found = json.dumps(report["evaluation"], sort_keys=True)
                    assert metrics.setdefault(way[1:], found) == found, f"{way} ends with other metrics"
    base = WAYS[0]
    print(f"{arguments.hosts} hosts with {arguments.ranks_per_host} ranks each, links of {arguments.rate}, {arguments.rounds} rounds\n")
    print("| pipeline | vectors | gradients | ms a step | waiting, ms | speed | MB a step | of f32 |\n|---|---|---|---|---|---|---|---|")
    for way in WAYS:
        speed = statistics.median(plain / this for plain, this in zip(steps[base], steps[way]))
        share = statistics.median(megabytes[way]) / statistics.median(megabytes[base])
        print(f"| {way[0]} | {way[1]} | {way[2]} | {statistics.median(steps[way]):.1f} | {statistics.median(waits[way]):.1f} "
              f"| {speed:.2f}x | {statistics.median(megabytes[way]):.2f} | {100 * share:.0f} % |")


if __name__ == "__main__":
    main()
