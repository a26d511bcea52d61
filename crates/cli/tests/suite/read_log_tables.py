"""Reads the Parquet files of a directory with pyarrow, in the order of their names, and prints what is in them as JSON.

Times are milliseconds since 1970. Each file is [notes, {column: type}, [row, ...]].
"""

import json
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def plain(table: pa.Table) -> pa.Table:
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return pa.table(columns, names=table.column_names)


def read(path: Path) -> list:
    file = pq.ParquetFile(path)
    notes = {key.decode(): value.decode() for key, value in (file.metadata.metadata or {}).items()}
    table = file.read()
    types = {field.name: str(field.type) for field in table.schema}
    return [notes, types, plain(table).to_pylist()]


directory = Path(sys.argv[1])
files = [read(path) for path in sorted(directory.glob("*.parquet"))]
if len(sys.argv) > 2:  # All files at once, as most people read them.
    whole = pq.read_table(directory)
    assert whole.num_rows == sum(len(rows) for _, _, rows in files), whole.num_rows
print(json.dumps(files))
