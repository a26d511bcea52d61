//! Rows in: Criteo TSV, CSV, Parquet, synthetic worlds, transforms, the packed format
