#!/usr/bin/env python3
"""Towers on the synthetic world with hidden groups: are the groups found, and what do towers cost in quality?

    bench/quality/towers.py [--campanile PROGRAM] [--groups-seeds 10] [--quality-seeds 5] [--samples 1000000]

First `campanile towers` on worlds of several seeds: the adjusted Rand index of the learned towers to the hidden groups, which
are different for every seed. Then NE on the test rows of the flat model, and of towers at compression ratio 4 that were
learned, dealt round robin, or dealt at random. Prints two Markdown tables.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

JOB = """
[run]
seed = {seed}
batch_size = 1024

[run.data]
kind = "synthetic"

[run.data.world]
preset = "planted_groups"
train_samples = {samples}
valid_samples = 0
test_samples = 200_000

[run.tables]
dim = 16

[run.model]
kind = "dlrm"
bottom = [32, {width}]
top = [64, 32]

[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = {rate}

[run.dense]
optimizer = "adagrad"
learning_rate = 0.02
{towers}
"""

TOWERS = 8


def section(partition, names):
    """The job's section for a partition, with modules that hand on a quarter of the floats."""
    lines = []
    for tower in range(TOWERS):
        features = [name for name, of in zip(names, partition) if of == tower]
        own = json.dumps(features)
        module = '{ kind = "ensemble", per_feature = 1, mixed = 0, width = 4 }'
        lines.append(f'[[run.towers.tower]]\nname = "t{tower}"\nfeatures = {own}\nmodule = {module}\n')
    return "[run.towers]\n" + "\n".join(lines)


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--campanile", default="target/release/campanile")
    arguments.add_argument("--groups-seeds", type=int, default=10)
    arguments.add_argument("--quality-seeds", type=int, default=5)
    arguments.add_argument("--samples", type=int, default=1_000_000)
    arguments.add_argument("--probe-steps", type=int, default=1000)
    arguments = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run(arguments, pathlib.Path(folder))


def run(arguments, folder):
    def job(seed, width=16, towers=""):
        path = folder / "job.toml"
        path.write_text(JOB.format(seed=seed, samples=arguments.samples, width=width, towers=towers, rate=0.1))
        return path

    def learn(seed):
        report = folder / "towers.json"
        command = [arguments.campanile, "towers", job(seed), "--towers", str(TOWERS), "--output", folder / "towers"]
        command += ["--probe-steps", str(arguments.probe_steps), "--report", report, "--quiet"]
        subprocess.run(command, check=True)
        return json.loads(report.read_text())

    def train(path):
        report = folder / "train.json"
        command = [arguments.campanile, "train", path, "--output", folder / "run", "--fresh", "--report", report, "--quiet"]
        subprocess.run(command, check=True)
        return json.loads(report.read_text())["evaluation"]["test"]["tasks"][0]["ne"]

    learned = {}
    print("| seed | learned | round robin | random |\n|---|---|---|---|", flush=True)
    for seed in range(1, arguments.groups_seeds + 1):
        learned[seed] = learn(seed)
        index = {one["name"]: one["rand_index_to_truth"] for one in learned[seed]["partitions"]}
        print(f"| {seed} | {index['learned']:.3f} | {index['round robin']:.3f} | {index['random']:.3f} |", flush=True)
    found = [one["rand_index_to_truth"] for report in learned.values() for one in report["partitions"] if one["name"] == "learned"]
    print(f"\nmean {statistics.mean(found):.3f}, least {min(found):.3f}\n")

    rows = {"flat": [], "learned towers": [], "round robin towers": [], "random towers": []}
    for seed in range(1, arguments.quality_seeds + 1):
        names, own = learned[seed]["features"], learned[seed]["towers"]
        dealt = [feature % TOWERS for feature in range(len(names))]
        shuffled = dealt[:]
        random.Random(seed).shuffle(shuffled)
        rows["flat"].append(train(job(seed)))
        for name, partition in [("learned towers", own), ("round robin towers", dealt), ("random towers", shuffled)]:
            rows[name].append(train(job(seed, 4, section(partition, names))))
    print("| model | NE | NE less the flat model's, in % |\n|---|---|---|")
    for name, values in rows.items():
        more = [100 * (value / flat - 1) for value, flat in zip(values, rows["flat"])]
        spread = [statistics.stdev(part) if len(part) > 1 else 0.0 for part in (values, more)]
        print(f"| {name} | {statistics.mean(values):.5f} ± {spread[0]:.5f} | {statistics.mean(more):+.3f} ± {spread[1]:.3f} |")


if __name__ == "__main__":
    main()
