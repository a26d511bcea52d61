#!/usr/bin/env python3
"""Ranks as processes beside ranks as threads: what MPI costs on one machine.

    bench/network/processes.py [--ranks 2] [--batch 2048] [--rounds 5] [--seconds 4]

Needs Open MPI and `cargo build --release --features mpi`. In turns, `campanile bench train` trains the kaggle and the terabyte
DLRM on RANKS threads and on RANKS processes; a ratio is taken inside a round, so load that slows both cancels. Every turn
starts anew, so that ranks that wait for their turn take no processor time. Prints a Markdown table.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WAYS = ["threads", "processes"]


def speed(arguments, config, way, folder):
    """Trains for a turn; returns samples a second."""
    report = folder / "report.json"
    report.unlink(missing_ok=True)
    bench = [arguments.campanile, "bench", "train", "--config", config, "--batch", str(arguments.batch), "--threads",
             str(arguments.ranks), "--seconds", str(arguments.seconds), "--report", report]
    mpirun = ["mpirun", "-n", str(arguments.ranks), "--bind-to", "none"]
    if os.geteuid() == 0:
        mpirun.append("--allow-run-as-root")
    subprocess.run((mpirun if way == "processes" else []) + bench, check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text())["runs"][0]["samples_per_second"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--batch", type=int, default=2048)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--seconds", type=float, default=4)
    arguments.add_argument("--configs", default="kaggle,terabyte")
    arguments.add_argument("--campanile", type=pathlib.Path, default=ROOT / "target/release/campanile", help="built with --features mpi")
    arguments = arguments.parse_args()
    print(f"{arguments.ranks} ranks, batches of {arguments.batch}, {arguments.rounds} rounds of {arguments.seconds:g} s\n")
    print("| configuration | threads, samples/s | processes, samples/s | processes / threads (range) |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for config in arguments.configs.split(","):
            found = {way: [] for way in WAYS}
            for turn in range(arguments.rounds):
                for way in WAYS if turn % 2 == 0 else reversed(WAYS):
                    found[way].append(speed(arguments, config, way, pathlib.Path(folder)))
            ratios = [processes / threads for threads, processes in zip(found["threads"], found["processes"])]
            threads, processes = (f"{statistics.median(found[way]):,.0f}" for way in WAYS)
            print(f"| {config} DLRM | {threads} | {processes} | {statistics.median(ratios):.2f} "
                  f"({min(ratios):.2f}–{max(ratios):.2f}) |", flush=True)


if __name__ == "__main__":
    main()
