#!/usr/bin/env bash
# Compares Campanile's planner with TorchRec's: builds ours, makes TorchRec's environment, runs torchrec_planner.py.
# Usage: bench/peers/torchrec_planner.sh [flags of torchrec_planner.py]
#   PYTHON=/path/to/python   use this Python (it has the packages below) instead of bench/peers/torchrec-venv
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ -z "${PYTHON:-}" ]; then
  PYTHON=$here/torchrec-venv/bin/python
  if [ ! -e "$here/torchrec-venv/complete" ]; then
    python3 -m venv "$here/torchrec-venv"
    "$here/torchrec-venv/bin/pip" install --quiet torch==2.14.1 torchrec==1.9.2
    # TorchRec asks for FBGEMM's build for GPUs; the one for CPUs is all that planning needs.
    "$here/torchrec-venv/bin/pip" uninstall --quiet --yes fbgemm-gpu
    "$here/torchrec-venv/bin/pip" install --quiet --no-deps fbgemm-gpu-cpu==1.9.0
    touch "$here/torchrec-venv/complete"
  fi
fi
case " $* " in
  *" --campanile"* | *" --help "* | *" -h "*) ;;
  *) cargo build --release --quiet --manifest-path "$here/../../Cargo.toml" --bin campanile ;;
esac
cd "$here/../.."
exec "$PYTHON" "$here/torchrec_planner.py" "$@"
