#!/usr/bin/env python3
"""Predictions held to runs: `campanile plan --check` on threads, on processes, and on hosts made of network namespaces.

    bench/check.py [--jobs kaggle,terabyte,bags] [--places threads,processes,2x1,2x2] [--link-mbit 1000] [--csv FILE]

The jobs are those of bench/check. Needs `cargo build --release --features mpi` and Open MPI; hosts (2x2: two hosts with two ranks each)
also need root and iproute2. In every place rates are measured first by `campanile bench topology`, on the very ranks and behind the
very links that then train. Prints a Markdown table: step time and memory, predicted and measured.
"""

import argparse
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "network"))
from bed import ROOT, bed, hosts  # noqa: E402

COLUMNS = ["place", "job", "pipelined", "predicted_ms", "measured_ms", "off", "memory_off"]


def inside(place, words, hostfile):
    """The command line of these words in a place."""
    if place == "threads":
        return words
    mpirun = ["mpirun", "--bind-to", "none", "--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])
    if place == "processes":
        return [*mpirun, "-n", "2", *words]
    count, ranks = map(int, place.split("x"))
    hostfile.write_text(bed("hostfile", ranks))
    return [ROOT / "testbed/testbed", "on", "0", *mpirun, "-n", str(count * ranks), "--hostfile", hostfile,
            *bed("mpirun-options").split(), *words]


def check(arguments, folder, place):
    """Measures the topology of a place and checks all jobs there; returns their lines."""
    topology, hostfile, lines = folder / f"{place}.toml", folder / "hosts", []
    campanile = arguments.campanile
    environment = {**os.environ, "TESTBED": "cnet", "TESTBED_NET": "10.77.8"}

    def run(*words):
        subprocess.run(inside(place, [campanile, *map(str, words)], hostfile), check=True, env=environment, stdout=sys.stderr)

    ranks = ["--ranks", 2] if place == "threads" else []
    run("bench", "topology", "--out", topology, "--rounds", arguments.readings, *ranks)
    for job in arguments.jobs.split(","):
        path, report = folder / "job.toml", folder / "report.json"
        text = (ROOT / f"bench/check/{job}.toml").read_text()
        path.write_text(text + f'\n[process]\npipeline = "{arguments.pipeline}"\ncache_dir = "{folder}/{job}"\n')
        run("plan", path, "--topology", topology, "--check", "--rounds", arguments.rounds, "--steps", arguments.steps,
            "--report", report, "--quiet")
        found = json.loads(report.read_text())["check"]
        predicted, measured = (1e3 * found[f"{kind}_step_seconds"] for kind in ("predicted", "measured"))
        memory = max((one["predicted"] / one["measured"] - 1 for one in found["memory_bytes"]), key=abs)
        lines.append([place, job, found["measured"]["pipelined"], round(predicted, 1), round(measured, 1),
                      round(predicted / measured - 1, 3), round(memory, 3)])
        print("| {} | {} | {} | {:.1f} | {:.1f} | {:+.0%} | {:+.0%} |".format(
            *lines[-1][:2], "on" if lines[-1][2] else "off", *lines[-1][3:]), flush=True)
        if arguments.keep:
            (arguments.keep / f"{place}-{job}.json").write_text(json.dumps(found, indent=1))
    if arguments.keep:
        (arguments.keep / topology.name).write_text(topology.read_text())
    return lines


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--jobs", default="kaggle,terabyte,bags")
    arguments.add_argument("--places", default="threads,processes,2x1,2x2")
    arguments.add_argument("--link-mbit", type=int, default=1000)
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--steps", type=int, default=10)
    arguments.add_argument("--readings", type=int, default=3, help="rounds of `campanile bench topology`")
    arguments.add_argument("--pipeline", default="auto")
    arguments.add_argument("--csv", type=pathlib.Path)
    arguments.add_argument("--keep", type=pathlib.Path, help="a folder for topologies and reports")
    arguments.add_argument("--campanile", type=pathlib.Path, default=ROOT / "target/release/campanile", help="built with --features mpi")
    arguments = arguments.parse_args()
    print("| place | job | pipeline | step predicted, ms | measured, ms | off by | memory off by |\n|---|---|---|---|---|---|---|")
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for place in arguments.places.split(","):
            if place in ("threads", "processes"):
                lines += check(arguments, folder, place)
                continue
            with hosts(int(place.split("x")[0]), f"{arguments.link_mbit}mbit"):
                lines += check(arguments, folder, place)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *lines])


if __name__ == "__main__":
    main()
