"""Real logs as model inputs: dense numbers, bags of row numbers, labels, cut by time into train, valid and test.

All transforms happen here, once, so that both engines read the same rows; Campanile maps ids with `direct`.
Ids are numbered on the training rows alone: 1, 2, ... by falling count for those seen often enough, and 0, shared,
for the rest. Counters ("past likes of this movie") look only at earlier rows.
"""

import csv
import io
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable

import numpy as np
import pyarrow as pa

TRAIN_SHARE, VALID_SHARE = 0.8, 0.1


@dataclass
class Feature:
    """One sparse feature. Sample i has the rows `ids[offsets[i]:offsets[i + 1]]`; bags of several ids are averaged."""

    name: str
    row_count: int
    offsets: np.ndarray
    ids: np.ndarray

    def is_list(self) -> bool:
        return len(self.ids) != len(self.offsets) - 1

    def take(self, rows: np.ndarray) -> "Feature":
        lengths = np.diff(self.offsets)[rows]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        # Position of every id: its bag's old start, plus its place in the bag.
        places = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        return Feature(self.name, self.row_count, offsets, self.ids[np.repeat(self.offsets[:-1][rows], lengths) + places])


@dataclass
class Samples:
    """Rows of a dataset, in order."""

    label: np.ndarray  # f32 [n]
    dense_names: list[str]
    dense: np.ndarray  # f32 [n, names]
    features: list[Feature]

    def __len__(self) -> int:
        return len(self.label)

    def take(self, rows: np.ndarray) -> "Samples":
        return Samples(
            self.label[rows], self.dense_names, self.dense[rows], [feature.take(rows) for feature in self.features]
        )


@dataclass
class Dataset:
    """A dataset, cut by time."""

    name: str
    train: Samples
    valid: Samples
    test: Samples


class PastRates:
    """Counts and smoothed rates of a label per value, as they stood before each row."""

    def __init__(self, prior: float, strength: float = 10.0):
        self.prior, self.strength = prior, strength
        self.seen: Counter = Counter()
        self.hits: Counter = Counter()

    def before_then_add(self, value, label: int) -> tuple[float, float]:
        """The log of the count and the rate, less its prior, so far; then the row is counted."""
        seen, hits = self.seen[value], self.hits[value]
        self.seen[value] += 1
        self.hits[value] += label
        rate = (hits + self.prior * self.strength) / (seen + self.strength)
        return float(np.log1p(seen)) / 8.0, rate - self.prior


def bounds(count: int) -> tuple[int, int]:
    return int(count * TRAIN_SHARE), int(count * (TRAIN_SHARE + VALID_SHARE))


def numbered(name: str, values: list, train_count: int, min_count: int) -> Feature:
    """A feature of one id a row."""
    return numbered_lists(name, [(value,) for value in values], train_count, min_count)


def numbered_lists(name: str, bags: list, train_count: int, min_count: int) -> Feature:
    counts = Counter(value for bag in bags[:train_count] for value in bag)
    frequent = sorted((value for value in counts if counts[value] >= min_count), key=lambda v: (-counts[v], str(v)))
    row_of = {value: row for row, value in enumerate(frequent, start=1)}
    ids = np.fromiter((row_of.get(value, 0) for bag in bags for value in bag), dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])]).astype(np.int64)
    return Feature(name, len(frequent) + 1, offsets, ids)


def cut(name: str, samples: Samples) -> Dataset:
    first_valid, first_test = bounds(len(samples))
    rows = np.arange(len(samples))
    parts = [samples.take(part) for part in np.split(rows, [first_valid, first_test])]
    return Dataset(name, *parts)


def read_zstd(path: Path) -> Iterable[str]:
    with pa.input_stream(str(path), compression="zstd") as stream:
        return io.StringIO(stream.read().decode("utf-8")).readlines()


def movielens(folder: Path) -> Dataset:
    """MovieLens 1M: does a user give a movie 4 or 5 stars?"""

    def table(name: str) -> list[list[str]]:
        return [line.split("::") for line in (folder / name).read_text("latin-1").splitlines()]

    users = {user: (gender, age, work) for user, gender, age, work, _ in table("users.dat")}
    movies = {movie: (int(title[-5:-1]), tuple(genres.split("|"))) for movie, title, genres in table("movies.dat")}
    # A stable sort: ratings of one second stay in the order of the file.
    ratings = sorted(table("ratings.dat"), key=lambda rating: int(rating[3]))
    train_count = bounds(len(ratings))[0]
    label = np.array([int(rating[2]) >= 4 for rating in ratings], dtype=np.float32)
    prior = float(label[:train_count].mean())
    by_user, by_movie = PastRates(prior), PastRates(prior)
    dense = np.empty((len(ratings), 5), dtype=np.float32)
    for row, (user, movie, _, _) in enumerate(ratings):
        clicked = int(label[row])
        year = (movies[movie][0] - 1980) / 20
        dense[row] = (year, *by_user.before_then_add(user, clicked), *by_movie.before_then_add(movie, clicked))
    one_id = {
        "user": [user for user, *_ in ratings],
        "gender": [users[user][0] for user, *_ in ratings],
        "age": [users[user][1] for user, *_ in ratings],
        "occupation": [users[user][2] for user, *_ in ratings],
        "movie": [movie for _, movie, *_ in ratings],
    }
    features = [numbered(name, values, train_count, min_count=5) for name, values in one_id.items()]
    features.append(numbered_lists("genres", [movies[movie][1] for _, movie, *_ in ratings], train_count, min_count=5))
    names = ["year", "user_count", "user_rate", "movie_count", "movie_rate"]
    return cut("movielens_1m", Samples(label, names, dense, features))


def criteo_kaggle(folder: Path) -> Dataset:
    """The first rows of Criteo's display advertising logs: 13 numbers, 26 ids; in order of time."""
    rows = [line.rstrip("\n").split("\t") for line in read_zstd(folder / "train_first10000.tsv.zst")]
    train_count = bounds(len(rows))[0]
    label = np.array([row[0] == "1" for row in rows], dtype=np.float32)
    numbers = np.array([[float(value or 0) for value in row[1:14]] for row in rows])
    dense = np.log1p(np.maximum(numbers, 0)).astype(np.float32)
    features = [numbered(f"C{n + 1}", [row[14 + n] for row in rows], train_count, min_count=4) for n in range(26)]
    return cut("criteo_kaggle_10k", Samples(label, [f"I{n + 1}" for n in range(13)], dense, features))


def criteo_attribution(folder: Path) -> Dataset:
    """A sample of Criteo's attribution logs, five ids a row; the rows' numbers give the order of time."""
    rows = sorted(csv.DictReader(read_zstd(folder / "impressions.csv.zst")), key=lambda row: int(row["row"]))
    train_count = bounds(len(rows))[0]
    names = ["cat1", "cat4", "cat6", "cat8", "cat9"]
    label = np.array([row["click"] == "1" for row in rows], dtype=np.float32)
    past = {name: PastRates(float(label[:train_count].mean())) for name in names}
    dense = np.array(
        [[past[name].before_then_add(row[name], int(row["click"]))[1] for name in names] for row in rows],
        dtype=np.float32,
    )
    features = [numbered(name, [row[name] for row in rows], train_count, min_count=4) for name in names]
    return cut("criteo_attribution_165k", Samples(label, [f"{name}_rate" for name in names], dense, features))


def avazu(folder: Path) -> Dataset:
    """The head of Avazu's click logs, one hour; 21 ids a row, and the past click rate of the site and the app."""
    rows = list(csv.DictReader(read_zstd(folder / "train_head.csv.zst")))
    train_count = bounds(len(rows))[0]
    names = [name for name in rows[0] if name not in ("id", "click", "hour")]
    label = np.array([row["click"] == "1" for row in rows], dtype=np.float32)
    past = {name: PastRates(float(label[:train_count].mean())) for name in ("site_id", "app_id")}
    dense = np.array(
        [[past[name].before_then_add(row[name], int(row["click"]))[1] for name in past] for row in rows],
        dtype=np.float32,
    )
    features = [numbered(name, [row[name] for row in rows], train_count, min_count=4) for name in names]
    return cut("avazu_10k", Samples(label, [f"{name}_rate" for name in past], dense, features))


READERS = {
    "movielens_1m": movielens,
    "criteo_kaggle_10k": criteo_kaggle,
    "criteo_attribution_165k": criteo_attribution,
    "avazu_10k": avazu,
}


def training_order(count: int, batch_size: int, epochs: int, seed: int) -> np.ndarray:
    """Row numbers of all epochs, each in an order of its own and cut to whole batches, so that neither engine has to
    decide what becomes of a last, smaller batch."""
    random = np.random.default_rng([seed, 20_000])
    whole = count - count % batch_size
    return np.concatenate([random.permutation(count)[:whole] for _ in range(epochs)])
