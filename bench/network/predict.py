#!/usr/bin/env python3
"""Predicted against measured: flat and towers across hosts made of network namespaces (testbed/testbed), beside `campanile simulate`.

    bench/network/predict.py [--shapes 2x2,4x1] [--rates 500,1000] [--rounds 1] [--csv FILE] [--topologies FOLDER]

Needs root, iproute2 and Open MPI. For each shape (hosts x ranks of each) it measures the topology behind links of 20 Gbit/s, trains
bench/network/job.toml without pipeline in turns flat, by the towers' ways alone, and with towers that hand on a half, a quarter
and an eighth, behind links of each rate (Mbit/s), and prints what `campanile simulate --measured` says of it. A step is a twelfth
of the difference between runs of 16 and of 4 steps, so that the start and the end do not count; medians over the rounds.
"""

import argparse
import csv
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
BED = {"TESTBED": "cpre", "TESTBED_NET": "10.77.9"}
FEATURES, DIM = 26, 64  # of bench/network/job.toml
WAYS = [("flat", 1), ("sptt", 1), ("towers", 2), ("towers", 4), ("towers", 8)]
COLUMNS = ["hosts", "ranks_per_host", "variant", "cr", "link_mbit", "step_ms"]


def bed(*words):
    """Runs testbed/testbed and returns what it prints."""
    command = [ROOT / "testbed/testbed", *map(str, words)]
    return subprocess.run(command, env={**os.environ, **BED}, check=True, text=True, stdout=subprocess.PIPE).stdout


STEPS, WARM_STEPS = 16, 4


def job(folder, variant, ratio, towers, steps=STEPS):
    """The job of a way, with a tower for every host."""
    text = (ROOT / "bench/network/job.toml").read_text().replace("steps_max = 24", f"steps_max = {steps}")
    width = DIM // ratio
    text = text.replace("bottom = [128, 64]", f"bottom = [128, {width}]")
    text += f'\n[run.towers]\nvariant = "{variant}"\n'
    text += f'module = {{ kind = "ensemble", per_feature = 1, mixed = 0, width = {width} }}\n'
    for tower in range(towers):
        own = range(tower * FEATURES // towers, (tower + 1) * FEATURES // towers)
        text += f'\n[[run.towers.tower]]\nname = "host{tower}"\nfeatures = {json.dumps([f"sparse_{f + 1}" for f in own])}\n'
    text += f'\n[process]\npipeline = "off"\ncache_dir = "{folder}/cache"\noutput_dir = "{folder}/output"\n'
    path = folder / f"{variant}{ratio}.toml"
    path.write_text(text)
    return path


class Shape:
    """Hosts with ranks."""

    def __init__(self, arguments, folder, words):
        self.campanile, self.folder = arguments.campanile, folder
        self.hosts, self.ranks = map(int, words.split("x"))
        self.topology = folder / f"{words}.toml"

    def run(self, *words):
        hostfile = self.folder / "hosts"
        hostfile.write_text(bed("hostfile", self.ranks))
        bed("on", 0, "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", self.hosts * self.ranks,
            "--hostfile", hostfile, *bed("mpirun-options").split(), self.campanile, *words)

    def with_links(self, mbit, action):
        bed("down")
        bed("up", self.hosts, f"{mbit}mbit")
        try:
            return action()
        finally:
            bed("down")

    def measure(self, folder):
        if folder and (folder / self.topology.name).exists():
            shutil.copy(folder / self.topology.name, self.topology)
            return
        self.with_links(20_000, lambda: self.run("bench", "topology", "--out", self.topology, "--quiet"))

    def seconds(self, variant, ratio, steps):
        report = self.folder / "report.json"
        shutil.rmtree(self.folder / "output", ignore_errors=True)
        self.run("train", job(self.folder, variant, ratio, self.hosts, steps), "--quiet", "--report", report)
        return json.loads(report.read_text())["seconds"]

    def step_ms(self, variant, ratio):
        warm, all_of_it = (self.seconds(variant, ratio, steps) for steps in (WARM_STEPS, STEPS))
        return 1e3 * (all_of_it - warm) / (STEPS - WARM_STEPS)

    def rows(self, mbit, rounds):
        def in_turns():
            steps = {way: [] for way in WAYS}
            for _ in range(rounds):
                for way in WAYS:
                    steps[way].append(self.step_ms(*way))
                    print(f"{self.hosts}x{self.ranks} {mbit} Mbit/s {way[0]} {way[1]}: {steps[way][-1]:.0f} ms", file=sys.stderr)
            return steps
        steps = self.with_links(mbit, in_turns)
        return [[self.hosts, self.ranks, *way, mbit, round(statistics.median(steps[way]), 2)] for way in WAYS]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shapes", default="2x2,4x1")
    arguments.add_argument("--rates", default="500")
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--csv", type=pathlib.Path, help="keep the runs here, and the topologies beside")
    arguments.add_argument("--topologies", type=pathlib.Path, help="a folder with topologies that were measured before, such as 2x2.toml")
    arguments.add_argument("--campanile", type=pathlib.Path, default=ROOT / "target/release/campanile", help="built with --features mpi")
    arguments = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        shapes, rows = [Shape(arguments, folder, words) for words in arguments.shapes.split(",")], []
        for shape in shapes:
            shape.measure(arguments.topologies)
            for mbit in arguments.rates.split(","):
                rows += shape.rows(int(mbit), arguments.rounds)
        runs = folder / "runs.csv"
        with runs.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
        topologies = [word for shape in shapes for word in ("--topology", shape.topology)]
        if arguments.csv:
            shutil.copy(runs, arguments.csv)
            [shutil.copy(shape.topology, arguments.csv.parent) for shape in shapes]
        words = [arguments.campanile, "simulate", job(folder, "towers", 4, shapes[0].hosts), *topologies, "--measured", runs]
        print(subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout)


if __name__ == "__main__":
    main()
