#!/usr/bin/env python3
"""Logistic regression and a factorization machine of ours beside Vowpal Wabbit's logistic regression, in turns, one thread each.

    bench/peers/linear.py CRITEO_FILE [--rows 2000000] [--rounds 5]

CRITEO_FILE is a Criteo log (tab-separated, plain or zstd, any length): its rows are repeated up to `--rows`. Both programs first bring the
rows into their own form (`campanile prep`, Vowpal Wabbit's cache), which is not timed; a turn is one pass of training over all rows,
13 numbers and 26 ids each, AdaGrad, 2^22 rows of one float in all. Needs the package `vowpalwabbit`, and `zstd` for
compressed files. Figures are rows a CPU second; the ratio is taken inside a round.
"""

import argparse
import json
import math
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile

JOB = """
[run]
batch_size = {batch}

[run.data]
kind = "criteo"
split = {{ kind = "by_row", valid = 0, test = 0.0001 }}

[run.tables]
rows = {rows_a_table}
{dim}

[run.model]
kind = "{model}"

[run.sparse]
optimizer = "adagrad"
learning_rate = 0.05

[run.dense]
optimizer = "adagrad"
learning_rate = 0.05

[process]
output_dir = "{folder}/run"
cache_dir = "{folder}/packed"
threads = 1

[process.data]
train = ["{file}"]
"""

BITS = 22
IDS = 26
NUMBERS = 13

# Run in a process of its own, so that its CPU time is its own.
VOWPAL = """
import sys, vowpalwabbit
vowpalwabbit.Workspace(sys.argv[1]).finish()
"""


def lines_of(path):
    if path.suffix != ".zst":
        return path.read_text().splitlines()
    done = subprocess.run(["zstd", "-dc", str(path)], capture_output=True, check=True)
    return done.stdout.decode().splitlines()


def vowpal_line(line):
    """The same features: the logarithm of a number, an id by the name of its column."""
    label, *cells = line.split("\t")
    numbers = [(f"n{i}", math.log1p(max(float(cell), 0.0))) for i, cell in enumerate(cells[:NUMBERS]) if cell]
    ids = [f"c{i}_{cell}" for i, cell in enumerate(cells[NUMBERS:])]
    return f"{1 if label == '1' else -1} |f " + " ".join([f"{name}:{value:.5f}" for name, value in numbers] + ids)


def cpu_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr or done.stdout}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Ours:
    def __init__(self, program, model, folder, data, rows, batch):
        self.program, self.rows, self.folder = program, rows, folder
        folder.mkdir()
        self.job = folder / "job.toml"
        dim = "dim = 4" if model == "factorization_machine" else ""
        self.job.write_text(
            JOB.format(model=model, folder=folder, file=data, dim=dim, batch=batch, rows_a_table=2**BITS // IDS)
        )
        cpu_seconds([program, "prep", self.job])

    def turn(self):
        report = self.folder / "report.json"
        command = [self.program, "train", self.job, "--fresh", "--report", report, "--quiet"]
        cpu = cpu_seconds(command)
        summary = json.loads(report.read_text())
        # One thread trains and another reads; what starting and the evaluation of a few rows take counts too.
        return self.rows / cpu, summary["samples_per_second"]


class Vowpal:
    def __init__(self, python, folder, text, rows):
        self.python, self.rows = python, rows
        self.words = f"--loss_function logistic --adaptive -l 0.05 -b {BITS} --holdout_off --quiet --cache_file {folder}/vw.cache -d {text}"
        self.turn()  # makes the cache

    def turn(self):
        return self.rows / cpu_seconds([self.python, "-c", VOWPAL, self.words]), None


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("file", type=pathlib.Path)
    flags.add_argument("--rows", type=int, default=2_000_000)
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--batch", type=int, default=8192, help="of ours")
    flags.add_argument("--campanile", default="target/release/campanile")
    given = flags.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        lines = lines_of(given.file)
        whole = [lines[i % len(lines)] for i in range(given.rows)]
        (folder / "rows.tsv").write_text("\n".join(whole) + "\n")
        (folder / "rows.vw").write_text("\n".join(map(vowpal_line, whole)) + "\n")
        ours = [
            (name, Ours(given.campanile, model, folder / model, folder / "rows.tsv", given.rows, given.batch))
            for name, model in [
                ("Campanile, logistic regression", "logistic_regression"),
                ("Campanile, factorization machine, 4 floats", "factorization_machine"),
            ]
        ]
        entries = [*ours, ("Vowpal Wabbit, logistic regression", Vowpal(sys.executable, folder, folder / "rows.vw", given.rows))]
        rates = {name: [] for name, _ in entries}
        walls = {name: [] for name, _ in entries}
        for _ in range(given.rounds):
            for name, entry in entries:
                rate, wall = entry.turn()
                rates[name].append(rate)
                walls[name].append(wall)
        print("| | rows a CPU second | rows a second of training | over Vowpal Wabbit, per CPU second |\n|---|---|---|---|")
        peer = rates[entries[-1][0]]
        for name, _ in entries:
            ratios = [mine / theirs for mine, theirs in zip(rates[name], peer)]
            wall = f"{statistics.median(walls[name]):,.0f}" if walls[name][0] else ""
            spread = f"{statistics.median(ratios):.2f}x ({min(ratios):.2f}–{max(ratios):.2f})"
            print(f"| {name} | {statistics.median(rates[name]):,.0f} | {wall} | {spread} |")


if __name__ == "__main__":
    main()
