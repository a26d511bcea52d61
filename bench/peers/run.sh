#!/usr/bin/env bash
# Compares Campanile with PyTorch on this machine: builds ours, makes PyTorch's environment, runs compare.py.
# Usage: bench/peers/run.sh [flags of compare.py]
#   PYTHON=/path/to/python   use this Python (it has the packages of requirements.txt) instead of bench/peers/venv
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$here/venv/bin/python
  if [ ! -e "$here/venv/complete" ]; then
    python3 -m venv "$here/venv"
    "$here/venv/bin/pip" install --quiet --requirement "$here/requirements.txt"
    touch "$here/venv/complete"
  fi
fi
case " $* " in
  *" --ours"* | *" --help "* | *" -h "*) ;;
  *) cargo build --release --quiet --manifest-path "$here/../../Cargo.toml" --bin campanile ;;
esac
exec "$PYTHON" "$here/compare.py" "$@"
