#!/usr/bin/env python3
"""Towers across hosts: flat, the towers' ways alone, and towers that hand on less and less, on hosts made of network namespaces.

    bench/network/towers.py [--shapes 2x2,4x2,8x1] [--share 0.5] [--ways towers-4-f32] [--rounds 3] [--csv FILE]
                            [--topologies FOLDER]

Needs root, iproute2 and Open MPI. For each shape (hosts x ranks of each) it trains bench/network/towers.toml

 1. without a limit on the links, once in every way: what the step takes by itself, and the bytes that every host's link counts
    for a step (the difference of a long and a short run, so that the start does not count);
 2. flat behind links of some rates, until the links take about the wanted share of the flat step: 1 - unlimited / limited;
 3. in turns, in every way without a limit again, and behind links of that rate.

Step times are means over the steps of a run after the first four, then medians over the rounds; speed is the median of the
rounds' ratios to the flat run of the same round. The limit of a way is the larger of its step without a limit and of the time
that the busiest link needs for its bytes. It prints a Markdown table and writes one line a way and link rate (0: no limit)
to the CSV. `sptt` must end with the losses of `flat`, or the script fails.

With `--topologies` it first measures what the hosts can do (`campanile bench topology`, without a limit on the links), keeps that in
the folder as 2x2.toml and so on, and at the end prints what `campanile simulate` predicts from it beside what was measured. A file
that is there already is used as it is.
"""

import argparse
import collections
import csv
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from bed import ROOT, bed, hosts, train

# Runs of seconds: ranks that share cores run now fast and now slowly, and short runs are mostly luck.
STEPS, WARM_STEPS = 64, 4
PARTS = ["input", "lookup", "pack", "network", "module", "update", "dense", "exchange", "members", "rest"]
COLUMNS = ["hosts", "ranks_per_host", "variant", "cr", "forward", "backward", "link_mbit", "step_ms", "step_ms_least",
           "step_ms_most", "speed", "veth_bytes_per_step", "batch", "features", "dim", "dense_parameters",
           *[f"{part}_ms" for part in PARTS]]

# The features are as many, their vectors as wide and the batch as large as bench/network/towers.toml says.
FEATURES, DIM, BATCH = 32, 64, 4096

Way = collections.namedtuple("Way", "variant cr forward backward")
FLAT, CR_4 = Way("flat", 1, "f32", "f32"), Way("towers", 4, "f32", "f32")
WAYS = [FLAT, Way("sptt", 1, "f32", "f32"), *[Way("towers", cr, "f32", "f32") for cr in (1, 2, 4, 8, 16)],
        Way("flat", 1, "f16", "bf16"), Way("towers", 1, "f16", "bf16"), Way("towers", 4, "f16", "bf16")]


def name(way):
    """Such as sptt-1-f32."""
    return f"{way.variant}-{way.cr}-{way.forward}"


def job(way, towers, steps):
    """The job of a way, with one tower for each host."""
    width = DIM // way.cr
    text = (ROOT / "bench/network/towers.toml").read_text()
    text = text.replace("[run]\n", f"[run]\nsteps_max = {steps}\n").replace("bottom = [64, 64]", f"bottom = [64, {width}]")
    text += f'\n[run.towers]\nvariant = "{way.variant}"\n'
    text += f'module = {{ kind = "ensemble", per_feature = 1, mixed = 0, width = {width} }}\n'
    for tower in range(towers):
        own = range(tower * FEATURES // towers, (tower + 1) * FEATURES // towers)
        names = ", ".join(f'"sparse_{feature + 1}"' for feature in own)
        text += f'\n[[run.towers.tower]]\nname = "host{tower}"\nfeatures = [{names}]\n'
    text += f'\n[run.exchange]\nforward = "{way.forward}"\nbackward = "{way.backward}"\n'
    return text + '\n[process]\npipeline = "on"\n'


def step_ms(run):
    """Milliseconds a step after the first ones, from the speeds since the start that the run noted."""
    lines = [line for line in run.metrics if line["split"] == "train"]
    seconds = {line["step"]: line["step"] * BATCH / line["samples_per_second"] for line in lines}
    return 1e3 * (seconds[STEPS] - seconds[WARM_STEPS]) / (STEPS - WARM_STEPS)


class Bench:
    """The measurements of one shape."""

    def __init__(self, arguments, folder, shape):
        self.campanile, self.folder, (self.hosts, self.ranks) = arguments.campanile, folder, shape
        self.ways = [way for way in WAYS if way == FLAT or not arguments.ways or name(way) in arguments.ways.split(",")]
        self.losses, self.bytes, self.unlimited, self.rows = {}, {}, collections.defaultdict(list), []

    def measure(self, folder):
        """The topology of this shape, measured unless it is there."""
        path = folder.resolve() / f"{self.hosts}x{self.ranks}.toml"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            hostfile = self.folder / "hosts"
            hostfile.write_text(bed("hostfile", self.ranks))
            bed("on", 0, "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", self.hosts * self.ranks,
                "--hostfile", hostfile, *bed("mpirun-options").split(), self.campanile, "bench", "topology", "--quiet",
                "--out", path)
        return path

    def predict(self, topology):
        """What `campanile simulate` says of the runs."""
        runs, path = self.folder / "runs.csv", self.folder / "predict.toml"
        write(runs, self.rows)
        path.write_text(job(CR_4, self.hosts, STEPS) + f'cache_dir = "{self.folder}/cache"\n')
        words = [self.campanile, "simulate", path, "--topology", topology, "--measured", runs]
        print("\n" + subprocess.run(words, check=True, text=True, stdout=subprocess.PIPE).stdout)

    def alone(self, way):
        """Milliseconds of a step without a limit on the links."""
        return statistics.median(map(step_ms, self.unlimited[way]))

    def run(self, way, steps=STEPS):
        run = train(self.campanile, self.folder, job(way, self.hosts, steps), self.hosts, self.ranks)
        took_towers = run.report["started"]["route"] != "flat"
        assert took_towers == (way.variant != "flat"), f"{way} took the way {run.report['started']['route']}"
        if steps == STEPS and way.variant != "towers":
            losses = json.dumps(run.report["training"], sort_keys=True)
            assert self.losses.setdefault(way[2:], losses) == losses, f"{way} has other losses than flat"
        return run

    def without_limit(self, way):
        """The step by itself, and the bytes of the busiest link in one direction."""
        bed("rate", "none")
        short, long = self.run(way, WARM_STEPS), self.run(way)
        grown = [max(b - a for a, b in zip(old, new)) for old, new in zip(short.links, long.links)]
        self.bytes[way] = max(grown) / (STEPS - WARM_STEPS)
        self.unlimited[way].append(long)

    def find_rate(self, share):
        """Mbit/s at which the links take this share of the flat step."""
        wanted = self.alone(FLAT) / (1 - share)
        mbit = self.bytes[FLAT] * 8 / 1e3 / wanted
        for _ in range(3):
            bed("rate", f"{mbit:.0f}mbit")
            found = step_ms(self.run(FLAT))
            print(f"  {mbit:.0f} Mbit/s: flat {found:.0f} ms, {self.alone(FLAT):.0f} without a limit", file=sys.stderr)
            if abs(1 - self.alone(FLAT) / found - share) < 0.03:
                break
            mbit *= found / wanted
        return round(mbit)

    def note(self, way, mbit, all_runs):
        """Keeps the line of a way behind links of a rate, out of the runs of all ways."""
        runs = all_runs[way]
        steps, flat = [step_ms(run) for run in runs], [step_ms(run) for run in all_runs[FLAT]]
        speeds = [flat / own for flat, own in zip(flat, steps)]
        parts = {f"{part}_ms": round(statistics.median(run.part_ms(part) for run in runs), 2) for part in PARTS}
        self.rows.append({
            "hosts": self.hosts, "ranks_per_host": self.ranks, **way._asdict(), "link_mbit": mbit,
            "step_ms": round(statistics.median(steps), 2), "step_ms_least": round(min(steps), 2),
            "step_ms_most": round(max(steps), 2), "speed": round(statistics.median(speeds), 3),
            "veth_bytes_per_step": round(self.bytes[way]), "batch": BATCH, "features": FEATURES, "dim": DIM,
            "dense_parameters": runs[0].report["started"]["dense_parameters"], **parts})

    def in_turns(self, mbit, rounds):
        runs = {way: [] for way in self.ways}
        for number in range(rounds):
            bed("rate", "none")
            for way in self.ways:
                self.unlimited[way].append(self.run(way))
            bed("rate", f"{mbit}mbit")
            for way in self.ways:
                runs[way].append(self.run(way))
                print(f"  round {number + 1}: {' '.join(map(str, way))}: {step_ms(runs[way][-1]):.0f} ms", file=sys.stderr)
        for way in self.ways:
            self.note(way, 0, self.unlimited)
            self.note(way, mbit, runs)

    def table(self, mbit):
        """Markdown."""
        limited = {Way(*[row[key] for key in Way._fields]): row for row in self.rows if row["link_mbit"] == mbit}
        flat = limited[FLAT]["step_ms"]
        print(f"\n**{self.hosts} hosts x {self.ranks} ranks, links of {mbit} Mbit/s**: they take "
              f"{100 * (1 - self.alone(FLAT) / flat):.0f} % of the flat step.\n")
        print("| variant | CR | vectors, gradients | MB a step and link | of flat | without a limit, ms | ms a step | limit, ms "
              "| of the limit | speed |\n|---|---|---|---|---|---|---|---|---|---|")
        for way, row in limited.items():
            link = self.bytes[way] * 8 / 1e3 / mbit
            limit = max(link, self.alone(way))
            print(f"| {way.variant} | {way.cr} | {way.forward}, {way.backward} | {self.bytes[way] / 1e6:.2f} "
                  f"| {100 * self.bytes[way] / self.bytes[FLAT]:.1f} % | {self.alone(way):.0f} "
                  f"| {row['step_ms']:.0f} ({row['step_ms_least']:.0f}–{row['step_ms_most']:.0f}) | {limit:.0f} "
                  f"| {100 * limit / row['step_ms']:.0f} % | **{row['speed']:.2f}x** |")


def write(path, rows):
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--shapes", default="2x2,4x2,8x1", help="hosts x ranks of each")
    arguments.add_argument("--share", type=float, default=0.5, help="what the links shall take of the flat step")
    arguments.add_argument("--link-mbit", type=int, help="a rate for the links, in place of the one that gives this share")
    arguments.add_argument("--ways", help="only these beside flat, such as sptt-1-f32,towers-4-f32,towers-4-f16")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--csv", type=pathlib.Path)
    arguments.add_argument("--topologies", type=pathlib.Path, help="measure the hosts, and predict the runs")
    arguments.add_argument("--campanile", type=pathlib.Path, default=ROOT / "target/release/campanile", help="built with --features mpi")
    arguments = arguments.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in arguments.shapes.split(","):
            shape = tuple(map(int, shape.split("x")))
            print(f"{shape[0]} hosts x {shape[1]} ranks", file=sys.stderr)
            bench = Bench(arguments, pathlib.Path(folder), shape)
            with hosts(shape[0], "none"):
                topology = arguments.topologies and bench.measure(arguments.topologies)
                for way in bench.ways:
                    bench.without_limit(way)
                mbit = arguments.link_mbit or bench.find_rate(arguments.share)
                bench.in_turns(mbit, arguments.rounds)
            bench.table(mbit)
            if topology:
                bench.predict(topology)
            rows += bench.rows
            if arguments.csv:
                write(arguments.csv, rows)


if __name__ == "__main__":
    main()
