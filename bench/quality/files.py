"""Writes samples as the files that a job reads: CSV with a header, or Parquet."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from datasets import Feature, Samples

SEPARATOR = "|"


def list_column(feature: Feature) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(feature.offsets, pa.int32()), pa.array(feature.ids, pa.int64()))


def text_column(feature: Feature) -> pa.Array:
    ids = [str(row) for row in feature.ids]
    starts = feature.offsets
    return pa.array([SEPARATOR.join(ids[start:end]) for start, end in zip(starts, starts[1:])])


def columns(samples: Samples, as_text: bool) -> pa.Table:
    named = {"label": pa.array(samples.label.astype("int8"))}
    for place, name in enumerate(samples.dense_names):
        named[name] = pa.array(samples.dense[:, place])
    for feature in samples.features:
        if feature.is_list():
            named[feature.name] = text_column(feature) if as_text else list_column(feature)
        else:
            named[feature.name] = pa.array(feature.ids)
    return pa.table(named)


def write(samples: Samples, path: Path) -> None:
    """By the path's ending. Numbers are written so that reading gives the same bits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pa.parquet.write_table(columns(samples, as_text=False), path)
        return
    table = columns(samples, as_text=True)
    with path.open("wb") as file:
        file.write((",".join(table.column_names) + "\n").encode())
        options = pa.csv.WriteOptions(include_header=False, quoting_style="none")
        pa.csv.write_csv(table, file, options)
