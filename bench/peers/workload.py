"""The standard configurations and their synthetic input, as `README.md` specifies them for every competitor.

Ids follow a Zipf law whose hot rows are scattered over the table, as hashed ids are; a generator that left
them side by side would flatter every cache. Batches are made once, before any clock runs.
"""

from dataclasses import dataclass

import numpy as np

DENSE_COUNT = 13
TABLE_COUNT = 26
ROW_COUNTS = [int(rows) for rows in np.geomspace(100_000, 1_000_000, TABLE_COUNT)]
ZIPF_EXPONENT = 1.05
CLICK_RATE = 0.25

CROSS_LAYERS = 3
CROSS_RANK = 64


@dataclass(frozen=True)
class Shape:
    """Widths of one standard model."""

    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]


SHAPES = {
    "kaggle": Shape(dim=16, bottom=(512, 256, 64, 16), top=(512, 256)),
    "terabyte": Shape(dim=128, bottom=(512, 256, 128), top=(1024, 1024, 512, 256)),
}


@dataclass(frozen=True)
class Configuration:
    """One line of the comparison."""

    config: str
    arch: str
    ids: int
    batch: int
    precision: str
    threads: int

    def name(self) -> str:
        network = "DCN-v2" if self.arch == "dcn" else "DLRM"
        bag = "1 id" if self.ids == 1 else f"{self.ids} ids"
        return f"{self.config} {network}, {bag}, batch {self.batch}, {self.precision}"

    def flags(self) -> list[str]:
        """The same words on every competitor's command line."""
        return [
            "--config", self.config, "--arch", self.arch, "--ids", str(self.ids), "--batch", str(self.batch),
            "--precision", self.precision, "--threads", str(self.threads),
        ]  # fmt: skip

    def table_bytes(self) -> int:
        return sum(ROW_COUNTS) * SHAPES[self.config].dim * 4

    def step_flops(self) -> float:
        """Of the matrix products of one step: forward, and twice that backward."""
        shape, vectors = SHAPES[self.config], TABLE_COUNT + 1

        def mlp(*widths: int) -> int:
            return sum(before * after for before, after in zip(widths, widths[1:]))

        if self.arch == "dot":
            width = vectors * (vectors - 1) // 2 + shape.dim
            interaction = vectors * vectors * shape.dim
        else:
            width = vectors * shape.dim
            interaction = CROSS_LAYERS * 2 * width * CROSS_RANK
        products = mlp(DENSE_COUNT, *shape.bottom) + interaction + mlp(width, *shape.top, 1)
        return 3.0 * 2.0 * products * self.batch

    def batch_count(self) -> int:
        """How many different batches are cycled through: about a quarter of a million ids a table, at least 4."""
        return max(4, min(16, (1 << 18) // (self.batch * self.ids)))


def zipf_rows(random: np.random.Generator, row_count: int, count: int) -> np.ndarray:
    """`count` row numbers; the k-th most frequent row has a probability proportional to k^-1.05."""
    cumulated = np.cumsum(np.arange(1, row_count + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    ranks = np.searchsorted(cumulated, random.random(count) * cumulated[-1])
    scatter = random.permutation(row_count)
    return scatter[np.minimum(ranks, row_count - 1)]


@dataclass
class Batches:
    """All batches of a configuration."""

    dense: np.ndarray  # f32 [batches, batch, 13]
    ids: np.ndarray  # i64 [batches, 26, batch * ids]
    labels: np.ndarray  # f32 [batches, batch]

    def distinct_share(self) -> float:
        """Distinct rows per id, averaged over tables and batches: what makes two generators comparable."""
        per_batch, table_count, id_count = self.ids.shape
        distinct = [len(np.unique(self.ids[b, t])) for b in range(per_batch) for t in range(table_count)]
        return float(np.mean(distinct)) / id_count


def make_batches(configuration: Configuration, seed: int = 0) -> Batches:
    random = np.random.default_rng(seed)
    count, batch = configuration.batch_count(), configuration.batch
    ids_per_batch = batch * configuration.ids
    ids = np.stack(
        [zipf_rows(random, rows, count * ids_per_batch).reshape(count, ids_per_batch) for rows in ROW_COUNTS], axis=1
    )
    dense = random.random((count, batch, DENSE_COUNT), dtype=np.float32)
    labels = (random.random((count, batch)) < CLICK_RATE).astype(np.float32)
    return Batches(dense, ids.astype(np.int64), labels)
