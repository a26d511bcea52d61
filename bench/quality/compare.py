"""Trains the same models on the same rows in PyTorch and in Campanile, several seeds each, and compares test scores.

A seed sets the first weights, each engine's own draw from the same distributions, and the order of the training
rows, which is the same for both. Usage: see `README.md`, or `compare.py --help`.
"""

import argparse
import json
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev

import torch

import campanile_side
import torch_side
from datasets import READERS, Dataset, training_order
from files import write
from job import Place, job_text
from metrics import Quality
from settings import ARCHITECTURES, SETTINGS

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent.parent
ENGINES = ["pytorch", "campanile"]
NAMES = {"pytorch": "PyTorch", "campanile": "Campanile", "dlrm": "DLRM", "dcn": "DCN-v2"}


@dataclass
class Comparison:
    """One model on one dataset: the test quality of every seed, by engine."""

    dataset: str
    architecture: str
    runs: dict[str, dict[int, Quality]] = field(default_factory=lambda: {engine: {} for engine in ENGINES})

    def values(self, engine: str, metric: str) -> list[float]:
        return [getattr(quality, metric) for _, quality in sorted(self.runs[engine].items())]

    def differences(self) -> list[float]:
        """NE of Campanile less that of PyTorch, seed by seed."""
        both = sorted(self.runs["pytorch"].keys() & self.runs["campanile"].keys())
        return [self.runs["campanile"][seed].ne - self.runs["pytorch"][seed].ne for seed in both]

    def verdict(self) -> str:
        """Worse only if the mean difference is above zero by more than twice its standard error."""
        differences = self.differences()
        if len(differences) < 2:
            return "too few seeds"
        error = stdev(differences) / len(differences) ** 0.5
        if mean(differences) > 2 * error:
            return "WORSE"
        return "better" if mean(differences) < -2 * error else "no difference beyond noise"


def spread(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{mean(values):.4f}" + (f" ± {stdev(values):.4f}" if len(values) > 1 else "")


def table(comparisons: list[Comparison]) -> str:
    lines = [
        "| data | model | engine | seeds | NE | log loss | AUC | NE, Campanile − PyTorch | |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for comparison in comparisons:
        for engine in ENGINES:
            scores = [spread(comparison.values(engine, metric)) for metric in ("ne", "logloss", "auc")]
            last = engine == ENGINES[-1]
            cells = [
                comparison.dataset,
                NAMES[comparison.architecture],
                NAMES[engine],
                str(len(comparison.runs[engine])),
                *scores,
                spread(comparison.differences()) if last else "",
                comparison.verdict() if last else "",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def folder_of(name: str, given: argparse.Namespace) -> Path | None:
    """Where a dataset's files are: in the data folder, or, for MovieLens, where `run.sh` has put them."""
    candidates = [given.data / name, given.work / name]
    return next((folder for folder in candidates if folder.is_dir()), None)


def one_seed(given: argparse.Namespace, dataset: Dataset, comparison: Comparison, seed: int, place: Place) -> None:
    settings, architecture = SETTINGS[comparison.dataset], comparison.architecture
    for engine in given.engines:
        begin = time.monotonic()
        if engine == "pytorch":
            scores = torch_side.train(dataset, settings, architecture, seed)
        else:
            job = place.output / f"{architecture}_{seed}.toml"
            job.parent.mkdir(parents=True, exist_ok=True)
            job.write_text(job_text(dataset.train, settings, architecture, seed, place))
            try:
                scores = campanile_side.train(given.campanile, job, given.threads, given.run_seconds_max)
            except campanile_side.CampanileFailed as failure:
                print(f"{comparison.dataset} {architecture} seed {seed}: campanile failed: {failure}", flush=True)
                continue
        comparison.runs[engine][seed] = scores["test"]
        line = {
            "data": comparison.dataset, "model": architecture, "engine": engine, "seed": seed,
            "seconds": round(time.monotonic() - begin, 1), **{split: vars(quality) for split, quality in scores.items()},
        }  # fmt: skip
        print(json.dumps(line), flush=True)
        with (given.work / "runs.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")


def write_order(dataset: Dataset, seed: int, place: Place) -> None:
    """The training file of a seed: all its epochs, in their order."""
    settings = SETTINGS[dataset.name]
    order = training_order(len(dataset.train), settings.batch_size, settings.epochs, seed)
    write(dataset.train.take(order), place.file("train", seed))


def one_dataset(given: argparse.Namespace, name: str, folder: Path) -> list[Comparison]:
    dataset = READERS[name](folder)
    print(f"{name}: {len(dataset.train)} + {len(dataset.valid)} + {len(dataset.test)} rows", flush=True)
    place = Place(given.work / "files" / name, given.work / "out" / name, given.form)
    comparisons = [Comparison(name, architecture) for architecture in given.architectures]
    if "campanile" in given.engines:
        for split in ("valid", "test"):
            write(getattr(dataset, split), place.file(split))
    for seed in range(1, given.seeds + 1):
        if "campanile" in given.engines:
            write_order(dataset, seed, place)
        for comparison in comparisons:
            one_seed(given, dataset, comparison, seed, place)
        # What a seed has written is large and made again in seconds.
        place.file("train", seed).unlink(missing_ok=True)
        shutil.rmtree(place.output / "cache", ignore_errors=True)
        shutil.rmtree(place.output / "run", ignore_errors=True)
    return comparisons


def words(choices: list[str]):
    """A comma-separated list of some of `choices`."""

    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if wrong := [word for word in chosen if word not in choices]:
            raise argparse.ArgumentTypeError(f"{wrong[0]} is none of {', '.join(choices)}")
        return chosen

    return parse


def parse() -> argparse.Namespace:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    flags.add_argument("data", type=Path, help="folder that holds one folder a dataset")
    flags.add_argument("--work", type=Path, default=HERE / "work", help="where files are written")
    flags.add_argument("--campanile", default=str(PROJECT / "target/release/campanile"))
    flags.add_argument("--seeds", type=int, default=5)
    flags.add_argument("--threads", type=int, default=1, help="Campanile's; its results do not depend on it")
    flags.add_argument("--datasets", type=words(list(READERS)), default=",".join(READERS))
    flags.add_argument("--architectures", type=words(ARCHITECTURES), default=",".join(ARCHITECTURES))
    flags.add_argument("--engines", type=words(ENGINES), default=",".join(ENGINES))
    flags.add_argument("--form", choices=["csv", "parquet"], default="csv", help="what Campanile reads")
    flags.add_argument("--run-seconds-max", type=float, default=600, help="limit for one run of Campanile")
    given = flags.parse_args()
    given.work.mkdir(parents=True, exist_ok=True)
    return given


def main() -> None:
    given = parse()
    # A time limit from outside ends the run as Ctrl-C does, and the table is printed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # These layers are too small to share: more threads make PyTorch slower, on a busy machine many times.
    torch.set_num_threads(1)
    comparisons: list[Comparison] = []
    try:
        for name in given.datasets:
            if folder := folder_of(name, given):
                comparisons += one_dataset(given, name, folder)
            else:
                print(f"{name}: left out, {given.data} has no folder of that name", flush=True)
    except KeyboardInterrupt:
        print("interrupted: the table holds what was trained")
    print("\n" + table(comparisons))


if __name__ == "__main__":
    main()
