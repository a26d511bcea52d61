#!/usr/bin/env python3
"""Towers: are hidden groups found, and what do towers cost in quality?

    bench/quality/towers.py [DATA_FOLDER] [--campanile PROGRAM] [--parts groups,ne,choose,real]

`groups`: `campanile towers` on synthetic worlds of several seeds, each with hidden groups of its own: the adjusted Rand index
of the learned towers to them. `ne`: NE on the test rows of the flat model and of towers at compression ratio 4 (or `--compression`), learned
(coherent and diverse), dealt round robin, and dealt at random; all of a seed on the same rows. `real`: AUC of them on real
logs in DATA_FOLDER (README.md says which; this part needs the packages numpy and pyarrow). `choose`: validation AUC by learning
rates, for those logs whose rates are then fixed in towers_data.py. Prints Markdown tables.
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
dim = {dim}

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

    def scores(self, job):
        """Trains, and gives the scores on the validation and on the test rows."""
        words = ["train", "--output", self.folder / "run", "--fresh", "--threads", self.threads]
        evaluation = self.run(words, job)["evaluation"]
        return {split: scores["tasks"][0] for split, scores in evaluation.items() if scores}

    def test(self, job):
        """The scores on the test rows."""
        return self.scores(job)["test"]


def section(given, partition, names, dim):
    """The job's section for a partition: in every tower a cross layer on its vectors, then a projection to a part of
    their floats. `MODULE_RATE` stands for the share of the dense rate at which they learn."""
    lines = [f'[run.towers]\nmodule = {{ kind = "cross", layers = 1, width = {dim // given.compression} }}\nmodule_rate = MODULE_RATE']
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


def world(given, seed, towers=""):
    network = NETWORKS[given.model].format(width=given.dim // given.compression if towers else given.dim)
    towers = towers.replace("MODULE_RATE", str(given.module_rate))
    return WORLD.format(**{**vars(given), "seed": seed, "network": network, "towers": towers})


def quality(campanile, given):
    rows = {name: [] for name in ["flat", *given.kinds]}
    truth = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        names, kinds = partitions(campanile, world(given, seed), WORLD_TOWERS, seed)
        flat = campanile.test(world(given, seed))
        truth.append(flat["truth_ne"])
        rows["flat"].append(flat["ne"])
        for name, partition in kinds.items():
            if name in rows:
                rows[name].append(campanile.test(world(given, seed, section(given, partition, names, given.dim)))["ne"])
        print(f"seed {seed}: " + ", ".join(f"{name} {values[-1]:.5f}" for name, values in rows.items()), flush=True)
    print("\n| model | NE | over flat, in % | over learned towers, in % |\n|---|---|---|---|")
    for name, values in rows.items():
        over = [[100 * (a / b - 1) for a, b in zip(values, rows[other])] for other in ("flat", "learned")]
        print(f"| {name} | {spread(values, 5)} | {spread(over[0], 3, '+')} | {spread(over[1], 3, '+')} |")
    print(f"| (the true probabilities) | {spread(truth, 5)} | | |\n", flush=True)


def real(campanile, given):
    import towers_data

    heads = ["data", "features, towers", "model", "multiply-adds", "AUC", "AUC less flat's", "standard errors"]
    print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", flush=True)
    for log in towers_data.logs(given.data, campanile.folder, given.logs):
        rows = {name: [] for name in ["flat", *(kind for kind in given.kinds if kind != "diverse")]}
        for turn in range(given.seeds):
            seed = given.first_seed + turn
            log.turn(turn, given.seeds)
            names, kinds = partitions(campanile, log.job(seed, network(given, log, "")), log.towers, seed)
            for name, values in rows.items():
                towers = "" if name == "flat" else section(given, kinds[name], names, log.dim)
                tried = [scores(campanile, given, log, seed, towers, choice) for choice in log.setting.choices(name == "flat")]
                # By the validation rows alone; of one choice there is nothing to choose.
                values.append(min(tried, key=lambda one: one["valid"]["ne"])["test"]["auc"])
        for name, values in rows.items():
            less = [a - b for a, b in zip(values, rows["flat"])]
            work = "" if given.model != "dcn" else f"{log.multiply_adds(kinds.get(name), given.compression):,}"
            cells = [log.name, f"{len(names)}, {log.towers}", name, work, spread(values, 4), spread(less, 4, "+"), errors(less)]
            print("| " + " | ".join(cells) + " |", flush=True)
    print()


def network(given, log, towers, choice=None):
    if choice is not None and given.model == "dcn":
        return choice.over.network()
    return NETWORKS[given.model].format(width=log.dim // given.compression if towers else log.dim)


def scores(campanile, given, log, seed, towers, choice):
    towers = towers.replace("MODULE_RATE", str(choice.modules))
    return campanile.scores(log.job(seed, network(given, log, towers, choice), towers, choice))


def errors(differences):
    """Their mean in standard errors of it."""
    if len(differences) < 2 or not any(differences):
        return ""
    return f"{statistics.mean(differences) / (statistics.stdev(differences) / len(differences) ** 0.5):+.1f}"


def choose(campanile, given):
    """Learning rates, and what stands over the vectors, on validation rows, for logs that have one set of test rows; nothing is
    said of the test rows."""
    import towers_data

    print("| data | model | rows, dense weights, cross, deep, modules | AUC, valid |\n|---|---|---|---|", flush=True)
    for log in towers_data.logs(given.data, campanile.folder, given.logs):
        if log.setting.in_turns:
            continue
        seeds = range(given.choose_seed, given.choose_seed + given.choose_seeds)
        learned = {}
        for seed in seeds:
            report = campanile.learn(log.job(seed, network(given, log, "")), log.towers)
            learned[seed] = section(given, report["towers"], report["features"], log.dim)
        for name, towers in (("flat", dict.fromkeys(seeds, "")), ("learned", learned)):
            for choice in log.setting.tried(name == "flat"):
                found = [scores(campanile, given, log, seed, towers[seed], choice)["valid"]["auc"] for seed in seeds]
                print(f"| {log.name} | {name} | {choice} | {spread(found, 4)} |", flush=True)
    print()


PARTS = {"groups": groups, "ne": quality, "choose": choose, "real": real}


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
    flags.add_argument("--compression", type=int, default=4, help="of `ne` and `real`: floats of a feature over those handed on")
    flags.add_argument("--dim", type=int, default=16, help="floats of a row in a world")
    flags.add_argument("--kinds", type=lambda words: words.split(","), default=KINDS, help="of `ne` and `real`: towers beside flat")
    flags.add_argument("--row-rate", type=float, default=0.1, help="learning rate of rows in a world")
    flags.add_argument("--dense-rate", type=float, default=0.02, help="learning rate of dense weights in a world")
    flags.add_argument("--module-rate", type=float, default=1.0, help="share of it for modules of towers in a world")
    flags.add_argument("--logs", type=lambda words: words.split(","), default=[], help="of `choose` and `real`: only these")
    flags.add_argument("--choose-seed", type=int, default=13, help="the first seed of `choose`")
    flags.add_argument("--choose-seeds", type=int, default=4)
    flags.add_argument("--threads", type=int, default=2, help="results do not depend on it")
    given = flags.parse_args()
    wanted = [part for part in given.parts.split(",") if given.data is not None or part not in ("choose", "real")]
    if wrong := [part for part in wanted if part not in PARTS]:
        flags.error(f"--parts: {wrong[0]} is none of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder:
        for part in wanted:
            PARTS[part](Campanile(given.campanile, pathlib.Path(folder), given.threads), given)


if __name__ == "__main__":
    main()
