#!/usr/bin/env bash
# Compares test scores of Campanile and PyTorch on real data, five seeds each, and prints a Markdown table.
# Usage: bench/quality/run.sh DATA_FOLDER [flags of compare.py]
#   DATA_FOLDER holds one folder a dataset (README.md); MovieLens 1M is fetched if it is not there.
#   PYTHON=/path/to/python   use this Python (it has the packages of requirements.txt) instead of bench/quality/venv
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
data=${1:?usage: bench/quality/run.sh DATA_FOLDER [flags of compare.py]}
if [ -z "${PYTHON:-}" ]; then
  export PYTHON=$here/venv/bin/python
  if [ ! -e "$here/venv/complete" ]; then
    python3 -m venv "$here/venv"
    "$here/venv/bin/pip" install --quiet --requirement "$here/requirements.txt"
    touch "$here/venv/complete"
  fi
fi
if [ ! -d "$data/movielens_1m" ] && [ ! -e "$here/work/movielens_1m/ratings.dat" ]; then
  "$here/fetch_movielens.sh" "$here/work/movielens_1m"
fi
features=()
case " $* " in *" parquet "* | *"=parquet "*) features=(--features campanile-cli/parquet) ;; esac
case " $* " in
  *" --campanile"* | *" --engines pytorch "*) ;;
  *) cargo build --release --quiet --manifest-path "$here/../../Cargo.toml" --bin campanile "${features[@]}" ;;
esac
exec "$PYTHON" "$here/compare.py" "$@"
