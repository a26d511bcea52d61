"""Real logs with enough features for towers, as jobs of `towers.py`."""

import csv
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable, Iterable, Iterator

import numpy as np

from datasets import Dataset, Feature, Samples, avazu, bounds, criteo_kaggle, cut, movielens, numbered, read_zstd
from files import write
from job import Place, column_sections, quoted
from past import movielens_past, ta_feng


def movielens_wide(folder: Path) -> Dataset:
    """MovieLens 1M with more of what its files say of user, movie and moment: twelve features."""

    def table(name: str) -> list[list[str]]:
        return [line.split("::") for line in (folder / name).read_text("latin-1").splitlines()]

    region = {user: place[:2] for user, *_, place in table("users.dat")}
    movies = {movie: (title[-5:-1], genres.split("|")) for movie, title, genres in table("movies.dat")}
    ratings = sorted(table("ratings.dat"), key=lambda rating: int(rating[3]))
    moments = [datetime.fromtimestamp(int(time), timezone.utc) for *_, time in ratings]
    one_id = {
        "region": [region[user] for user, *_ in ratings],
        "year": [movies[movie][0] for _, movie, *_ in ratings],
        "first_genre": [movies[movie][1][0] for _, movie, *_ in ratings],
        "genre_count": [len(movies[movie][1]) for _, movie, *_ in ratings],
        "hour": [moment.hour for moment in moments],
        "weekday": [moment.weekday() for moment in moments],
    }
    train_count = bounds(len(ratings))[0]
    more = [numbered(name, values, train_count, min_count=5) for name, values in one_id.items()]
    count = len(ratings)
    more = cut("more", Samples(np.zeros(count, np.float32), [], np.zeros((count, 0), np.float32), more))
    base = movielens(folder)

    def both(split: str) -> Samples:
        one = getattr(base, split)
        return Samples(one.label, one.dense_names, one.dense, one.features + getattr(more, split).features)

    return Dataset("movielens_1m, 12 features", both("train"), both("valid"), both("test"))


def criteo_search(folder: Path) -> Dataset:
    """Clicks on sponsored products of two shops: is it bought? Prices are left out, for they are known of sales only, and users,
    of whom nearly all come once."""
    rows = list(csv.DictReader(read_zstd(folder / "clicks_by_time.csv.zst")))
    train_count = bounds(len(rows))[0]
    label = np.array([row["Sale"] == "1" for row in rows], dtype=np.float32)
    clicks = np.array([max(float(row["nb_clicks_1week"]), 0) for row in rows])
    moments = [datetime.fromtimestamp(int(row["click_timestamp"]), timezone.utc) for row in rows]
    names = ["product_age_group", "device_type", "audience_id", "product_gender", "product_brand"]
    names += [f"prod_category{n}" for n in range(1, 7)] + ["product_country", "product_id", "product_title", "partner_id"]
    one_id = {name: [row[name] for row in rows] for name in names}
    one_id |= {"hour": [moment.hour for moment in moments], "weekday": [moment.weekday() for moment in moments]}
    features = [numbered(name, values, train_count, min_count=4) for name, values in one_id.items()]
    dense = np.log1p(clicks).astype(np.float32)[:, None] / 8
    return cut("criteo_search_conv_27k", Samples(label, ["clicks"], dense, features))


def turned(dataset: Dataset, turn: int, turns: int) -> Dataset:
    """The same rows in a ring, cut at another place: every turn has test rows of its own. A test of a thousand rows is mostly
    luck, and by turns the luck shows in the deviation."""
    parts = [dataset.train, dataset.valid, dataset.test]

    def joined(features: tuple[Feature, ...]) -> Feature:
        lengths = np.concatenate([np.diff(feature.offsets) for feature in features])
        ids = np.concatenate([feature.ids for feature in features])
        return Feature(features[0].name, features[0].row_count, np.concatenate([[0], np.cumsum(lengths)]), ids)

    features = [joined(of_parts) for of_parts in zip(*(part.features for part in parts))]
    label, dense = (np.concatenate([getattr(part, name) for part in parts]) for name in ("label", "dense"))
    ring = Samples(label, parts[0].dense_names, dense, features)
    rows = np.roll(np.arange(len(ring)), -(turn * len(ring) // turns))
    return cut(dataset.name, ring.take(rows))


@dataclass(frozen=True)
class Over:
    """What stands over the vectors: DCN-v2's cross layers, and its deep ones beside them."""

    layers: int = 2
    rank: int = 32
    deep: tuple[int, ...] = (64, 32)

    def network(self) -> str:
        return f'kind = "dcn"\ncross_layers = {self.layers}\ncross_rank = {self.rank}\ndeep = {list(self.deep)}'

    def multiply_adds(self, width: int) -> int:
        """Of one sample, forward, with `width` floats coming in."""
        deep = sum(a * b for a, b in zip((width, *self.deep), self.deep))
        return self.layers * 2 * width * self.rank + deep + width + self.deep[-1]


def module_multiply_adds(sizes: Iterable[int], width: int) -> int:
    """Of towers with so many features each: one cross layer, and a projection to `width` floats a feature."""
    return sum((size * DIM) ** 2 + size * DIM * size * width for size in sizes)


@dataclass(frozen=True)
class Choice:
    """What is chosen on validation rows: learning rates of rows and of dense weights, what stands over the vectors, and the share of
    the dense rate at which modules of towers learn."""

    row: float
    dense: float
    over: Over = Over()
    modules: float = 1.0

    def __str__(self) -> str:
        over = self.over
        words = f"{self.row}, {self.dense}, {over.layers} x {over.rank}, {'-'.join(map(str, over.deep))}"
        return words + (f", modules {self.modules}" if self.modules != 1.0 else "")


def row_rates(*rates: float) -> list[Choice]:
    return [Choice(rate, 0.01) for rate in rates]


@dataclass(frozen=True)
class Setting:
    """How a log is read and trained. Where there are several choices, every seed takes the one that is best on its own validation
    rows, for the flat model and for each kind of towers apart. Else `towers.py --parts choose` has chosen it on validation
    rows, on other seeds, among `tried`."""

    name: str
    folder: str
    read: Callable[[Path], Dataset]
    towers: int
    batch_size: int
    # Whether the log is so short that every seed gets test rows of its own.
    in_turns: bool
    flat: list[Choice]
    in_towers: list[Choice]
    tried_flat: list[Choice] = field(default_factory=list)
    tried_in_towers: list[Choice] = field(default_factory=list)

    def choices(self, is_flat: bool) -> list[Choice]:
        return self.flat if is_flat else self.in_towers

    def tried(self, is_flat: bool) -> list[Choice]:
        return self.tried_flat if is_flat else self.tried_in_towers


SHORT = row_rates(0.01, 0.02, 0.05)

# What is tried for logs that have one set of test rows: as much for flat as for towers. With 12 features rates alone.
TWELVE = [*row_rates(0.02, 0.03, 0.05), Choice(0.03, 0.005), Choice(0.02, 0.02), Choice(0.03, 0.02)]

# With 26 features also more over the vectors: wider, and for flat deeper, for towers as wide as the same arithmetic allows.
NINE = [Choice(row, dense) for row in (0.02, 0.03, 0.05) for dense in (0.01, 0.02, 0.05)]
WIDER, DEEPER, WIDEST = Over(2, 64, (128, 64)), Over(3, 32, (128, 64)), Over(2, 128, (256, 64))


def tried(further: Choice, *over: tuple[float, float, Over]) -> list[Choice]:
    return [*NINE, further, *(Choice(*one) for one in over)]


def slower(row: float, dense: float) -> list[Choice]:
    return [Choice(row, dense, modules=share) for share in (0.3, 0.1, 0.03)]


SETTINGS = [
    Setting("criteo_kaggle_10k", "criteo_kaggle_10k", criteo_kaggle, 8, 128, True, SHORT, SHORT),
    Setting("avazu_10k", "avazu_10k", avazu, 7, 128, True, SHORT, SHORT),
    Setting("criteo_search_conv_27k", "criteo_search_conv_27k", criteo_search, 4, 128, True, SHORT, SHORT),
    Setting("movielens_1m", "movielens_1m", movielens_wide, 4, 512, False, [Choice(0.03, 0.02)], [Choice(0.02, 0.02)], TWELVE, TWELVE),
    Setting(
        "movielens_1m_26", "movielens_1m", movielens_past, 8, 512, False, [Choice(0.03, 0.02)], [Choice(0.05, 0.02)],
        tried(Choice(0.03, 0.1), (0.03, 0.02, WIDER), (0.03, 0.02, DEEPER), (0.03, 0.05, WIDER), (0.03, 0.05, DEEPER)),
        tried(Choice(0.08, 0.02), (0.03, 0.02, WIDER), (0.03, 0.02, WIDEST), (0.05, 0.02, WIDER), (0.05, 0.02, WIDEST)),
    ),
    Setting(
        "ta_feng", "ta_feng", ta_feng, 8, 512, False, [Choice(0.03, 0.01)], [Choice(0.02, 0.01, modules=0.1)],
        tried(Choice(0.02, 0.005), (0.03, 0.01, WIDER), (0.03, 0.01, DEEPER)),
        [*tried(Choice(0.02, 0.005), (0.02, 0.01, WIDER), (0.02, 0.01, WIDEST)), *slower(0.02, 0.01), *slower(0.03, 0.01)],
    ),
]  # fmt: skip

DIM = 32


class Log:
    """A real log, written for Campanile."""

    dim = DIM

    def __init__(self, setting: Setting, folder: Path, scratch: Path):
        self.dataset, self.scratch = setting.read(folder), scratch
        self.name, self.towers, self.setting = self.dataset.name, setting.towers, setting
        self.columns = column_sections(self.dataset.train, "csv")
        self.place = self.written(self.dataset, "")

    def written(self, dataset: Dataset, mark: str) -> Place:
        folder = f"{self.setting.name}{mark}"
        place = Place(self.scratch / folder, self.scratch / f"{folder}_out", "csv")
        for split in ("train", "valid", "test"):
            write(getattr(dataset, split), place.file(split))
        return place

    def turn(self, turn: int, turns: int) -> None:
        """From now on the rows of this turn, if the log goes by turns."""
        if self.setting.in_turns:
            self.place = self.written(turned(self.dataset, turn, turns), f"_{turn}")

    def multiply_adds(self, partition: list[int] | None, compression: int) -> int:
        """Of one sample, forward, flat or in these towers; of several choices the largest."""
        train, choices = self.dataset.train, self.setting.choices(partition is None)
        width = len(train.dense_names) + len(train.features) * DIM // (1 if partition is None else compression)
        modules = module_multiply_adds(Counter(partition or []).values(), DIM // compression)
        return modules + max(choice.over.multiply_adds(width) for choice in choices)

    def job(self, seed: int, network: str, towers: str = "", rates: Choice = Choice(0.03, 0.01)) -> str:
        files = ", ".join(f"{split} = [{quoted(self.place.file(split))}]" for split in ("train", "valid", "test"))
        return "\n\n".join(
            [
                f"[run]\nseed = {seed}\nbatch_size = {self.setting.batch_size}",
                '[run.data]\nkind = "csv"\nsplit = "by_file"',
                *self.columns,
                f'[run.tables]\ndim = {DIM}\ninit = {{ kind = "uniform", bound = 0.05 }}',
                f"[run.model]\n{network}",
                f'[run.sparse]\noptimizer = "rowwise_adagrad"\nlearning_rate = {rates.row}',
                f'[run.dense]\noptimizer = "adagrad"\nlearning_rate = {rates.dense}',
                towers,
                f"[process]\ncache_dir = {quoted(self.place.output)}\ndata = {{ {files} }}",
            ]
        )


def logs(data: Path, scratch: Path, only: list[str]) -> Iterator[Log]:
    """Those that DATA_FOLDER has; the others are named."""
    for setting in SETTINGS:
        if only and setting.name not in only:
            continue
        if (data / setting.folder).is_dir():
            yield Log(setting, data / setting.folder, scratch)
        else:
            print(f"{setting.folder}: left out, {data} has no folder of that name", flush=True)
