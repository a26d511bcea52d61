#!/usr/bin/env python3
"""Towers: are hidden groups found, and what do towers cost in quality?

    bench/quality/towers.py [DATA_FOLDER] [--campanile PROGRAM] [--parts groups,ne,real]

`groups`: `campanile towers` on synthetic worlds of several seeds, each with hidden groups of its own: the adjusted Rand index
of the learned towers to them. `ne`: NE on the test rows of the flat model and of towers at compression ratio 4, learned
(coherent and diverse), dealt round robin, and dealt at random; all of a seed on the same rows. `real`: AUC of them on real
logs in DATA_FOLDER (README.md says which; this part needs the packages numpy and pyarrow). Prints Markdown tables.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

WORLD = """
[run]
seed = {seed}
batch_size = 1024

[run.data]
kind = "synthetic"

[run.data.world]
preset = "planted_groups"
train_samples = {samples}
valid_samples = 0
test_samples = {test_samples}

[run.tables]
dim = 16

[run.model]
{network}

[run.sparse]
optimizer = "rowwise_adagrad"
learning_rate = {row_rate}

[run.dense]
optimizer = "adagrad"
learning_rate = {dense_rate}
{towers}
"""

# `width` is that of the vectors that meet; DLRM's dense inputs meet them too.
NETWORKS = {
    "dcn": 'kind = "dcn"\ncross_layers = 2\ncross_rank = 32\ndeep = [64, 32]',
    "dlrm": 'kind = "dlrm"\nbottom = [32, {width}]\ntop = [64, 32]',
}

WORLD_TOWERS = 8
COMPRESSION = 4
KINDS = ["learned", "diverse", "round robin", "random"]


class Campanile:
    """The program, and a folder for what it leaves."""

    def __init__(self, program, folder, threads):
        self.program, self.folder, self.threads = program, folder, threads

    def run(self, words, job):
        path, report = self.folder / "job.toml", self.folder / "report.json"
        path.write_text(job)
        command = [self.program, words[0], path, *words[1:], "--report", report, "--quiet"]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(map(str, command))}\n{done.stderr or done.stdout}")
        return json.loads(report.read_text())

    def learn(self, job, towers, flags=()):
        return self.run(["towers", "--towers", towers, "--output", self.folder / "towers", *flags], job)

    def test(self, job):
        """Trains, and gives the scores on the test rows."""
        words = ["train", "--output", self.folder / "run", "--fresh", "--threads", self.threads]
        return self.run(words, job)["evaluation"]["test"]["tasks"][0]


def section(partition, names, dim):
    """The job's section for a partition: in every tower a cross layer on its vectors, then a projection to a quarter of
    their floats."""
    lines = [f'[run.towers]\nmodule = {{ kind = "cross", layers = 1, width = {dim // COMPRESSION} }}']
    for tower in range(max(partition) + 1):
        own = json.dumps([name for name, of in zip(names, partition) if of == tower])
        lines.append(f'[[run.towers.tower]]\nname = "t{tower}"\nfeatures = {own}\n')
    return "\n".join(lines)


def partitions(campanile, job, towers, seed):
    """The names of the features, and towers of every kind."""
    learned = campanile.learn(job, towers)
    same_probe = ["--checkpoint", learned["probe"]]
    diverse = campanile.learn(job, towers, ["--strategy", "diverse", *same_probe])
    names = learned["features"]
    dealt = [feature % towers for feature in range(len(names))]
    shuffled = dealt[:]
    random.Random(seed).shuffle(shuffled)
    return names, dict(zip(KINDS, [learned["towers"], diverse["towers"], dealt, shuffled]))


def spread(values, digits, sign=""):
    text = f"{statistics.mean(values):{sign}.{digits}f}"
    return text + (f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else "")


def groups(campanile, given):
    print("| seed | learned | round robin | random |\n|---|---|---|---|", flush=True)
    found = []
    for seed in range(given.first_seed, given.first_seed + given.groups_seeds):
        report = campanile.learn(world(given, seed), WORLD_TOWERS)
        index = {one["name"]: one["rand_index_to_truth"] for one in report["partitions"]}
        found.append(index["learned"])
        print(f"| {seed} | {index['learned']:.3f} | {index['round robin']:.3f} | {index['random']:.3f} |", flush=True)
    print(f"\nmean {statistics.mean(found):.3f}, least {min(found):.3f}\n", flush=True)


def world(given, seed, width=16, towers=""):
    network = NETWORKS[given.model].format(width=width)
    return WORLD.format(**{**vars(given), "seed": seed, "network": network, "towers": towers})


def quality(campanile, given):
    rows = {name: [] for name in ["flat", *KINDS]}
    truth = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        names, kinds = partitions(campanile, world(given, seed), WORLD_TOWERS, seed)
        flat = campanile.test(world(given, seed))
        truth.append(flat["truth_ne"])
        rows["flat"].append(flat["ne"])
        for name, partition in kinds.items():
            job = world(given, seed, 16 // COMPRESSION, section(partition, names, 16))
            rows[name].append(campanile.test(job)["ne"])
        print(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.5f}" for name, values in rows.items()), flush=True)
    print("\n| model | NE | over flat, in % | over learned towers, in % |\n|---|---|---|---|")
    for name, values in rows.items():
        over = [[100 * (a / b - 1) for a, b in zip(values, rows[other])] for other in ("flat", "learned")]
        print(f"| {name} | {spread(values, 5)} | {spread(over[0], 3, '+')} | {spread(over[1], 3, '+')} |")
    print(f"| (the true probabilities) | {spread(truth, 5)} | | |\n", flush=True)


def real(campanile, given):
    import towers_data

    print("| data | features, towers | model | AUC | AUC less flat's |\n|---|---|---|---|---|", flush=True)
    for log in towers_data.logs(given.data, campanile.folder):
        rows = {name: [] for name in ["flat", "learned", "round robin", "random"]}
        flat, narrow = (NETWORKS[given.model].format(width=width) for width in (log.dim, log.dim // COMPRESSION))
        for turn in range(given.seeds):
            seed = given.first_seed + turn
            log.turn(turn, given.seeds)
            names, kinds = partitions(campanile, log.job(seed, flat), log.towers, seed)
            for name, values in rows.items():
                towers = "" if name == "flat" else section(kinds[name], names, log.dim)
                values.append(campanile.test(log.job(seed, narrow if towers else flat, towers))["auc"])
        for name, values in rows.items():
            less = [a - b for a, b in zip(values, rows["flat"])]
            cells = [log.name, f"{len(names)}, {log.towers}", name, spread(values, 4), spread(less, 4, "+")]
            print("| " + " | ".join(cells) + " |", flush=True)
    print()


PARTS = {"groups": groups, "ne": quality, "real": real}


def main():
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("data", type=pathlib.Path, nargs="?", help="folder that holds one folder a dataset, for `real`")
    flags.add_argument("--campanile", default="target/release/campanile")
    flags.add_argument("--parts", default=",".join(PARTS), help="which tables, with commas between")
    flags.add_argument("--first-seed", type=int, default=1001)
    flags.add_argument("--groups-seeds", type=int, default=10)
    flags.add_argument("--seeds", type=int, default=5, help="of `ne` and `real`")
    flags.add_argument("--samples", type=int, default=2_000_000, help="training samples of a world")
    flags.add_argument("--test-samples", type=int, default=200_000)
    flags.add_argument("--model", choices=NETWORKS, default="dcn", help="of `ne` and `real`")
    flags.add_argument("--row-rate", type=float, default=0.1, help="learning rate of rows in a world")
    flags.add_argument("--dense-rate", type=float, default=0.02, help="learning rate of dense weights in a world")
    flags.add_argument("--threads", type=int, default=2, help="results do not depend on it")
    given = flags.parse_args()
    wanted = [part for part in given.parts.split(",") if given.data is not None or part != "real"]
    if wrong := [part for part in wanted if part not in PARTS]:
        flags.error(f"--parts: {wrong[0]} is none of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder:
        for part in wanted:
            PARTS[part](Campanile(given.campanile, pathlib.Path(folder), given.threads), given)


if __name__ == "__main__":
    main()
