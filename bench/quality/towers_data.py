"""Real logs with enough features for towers, as jobs of `towers.py`."""

from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Callable, Iterator

import numpy as np

from datasets import Dataset, Samples, avazu, bounds, criteo_kaggle, cut, movielens, numbered
from files import write
from job import Place, column_sections, quoted


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


@dataclass(frozen=True)
class Setting:
    """How a log is read and trained. Rates and batches are those of `settings.py`; rows are wider, so that a quarter of
    their floats still is a vector."""

    folder: str
    read: Callable[[Path], Dataset]
    towers: int
    batch_size: int
    row_rate: float


SETTINGS = [
    Setting("criteo_kaggle_10k", criteo_kaggle, 8, 128, 0.02),
    Setting("avazu_10k", avazu, 7, 128, 0.02),
    Setting("movielens_1m", movielens_wide, 4, 512, 0.1),
]

DIM = 16


class Log:
    """A real log, written for Campanile."""

    dim = DIM

    def __init__(self, setting: Setting, folder: Path, scratch: Path):
        dataset = setting.read(folder)
        self.name, self.towers, self.setting = dataset.name, setting.towers, setting
        self.place = Place(scratch / setting.folder, scratch / f"{setting.folder}_out", "csv")
        self.columns = column_sections(dataset.train, "csv")
        for split in ("train", "valid", "test"):
            write(getattr(dataset, split), self.place.file(split))

    def job(self, seed: int, network: str, towers: str = "") -> str:
        files = ", ".join(f"{split} = [{quoted(self.place.file(split))}]" for split in ("train", "valid", "test"))
        return "\n\n".join(
            [
                f"[run]\nseed = {seed}\nbatch_size = {self.setting.batch_size}",
                '[run.data]\nkind = "csv"\nsplit = "by_file"',
                *self.columns,
                f'[run.tables]\ndim = {DIM}\ninit = {{ kind = "uniform", bound = 0.05 }}',
                f"[run.model]\n{network}",
                f'[run.sparse]\noptimizer = "rowwise_adagrad"\nlearning_rate = {self.setting.row_rate}',
                '[run.dense]\noptimizer = "adagrad"\nlearning_rate = 0.01',
                towers,
                f"[process]\ncache_dir = {quoted(self.place.output)}\ndata = {{ {files} }}",
            ]
        )


def logs(data: Path, scratch: Path) -> Iterator[Log]:
    """Those that DATA_FOLDER has; the others are named."""
    for setting in SETTINGS:
        if (data / setting.folder).is_dir():
            yield Log(setting, data / setting.folder, scratch)
        else:
            print(f"{setting.folder}: left out, {data} has no folder of that name", flush=True)
