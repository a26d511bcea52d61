#!/usr/bin/env bash
# The same bits under MPICH: trains examples/tiny.toml and examples/towers.toml on a thread, and on 1, 2 and 4 processes under MPICH,
# and compares every byte of the last checkpoint's rows and weights, and all metrics.
#
#   testbed/mpich.sh
#
# MPICH may stand beside Open MPI, which stays what `mpirun` means; the program is built for it in target/mpich (TARGET).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
target=${TARGET:-$root/target/mpich}
compiler=${MPICC:-mpicc.mpich}
mpirun=${MPIRUN:-mpirun.mpich}

for tool in "$compiler" "$mpirun"; do
    command -v "$tool" >/dev/null || { echo "$tool is not here; install it with: apt install mpich libmpich-dev" >&2; exit 1; }
done
cd "$root"
MPICC=$compiler CARGO_TARGET_DIR=$target cargo build --features mpi
campanile=$target/debug/campanile
linked=$(ldd "$campanile")
grep -q libmpich <<<"$linked" || { echo "$campanile was not linked with MPICH:"; echo "$linked"; exit 1; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# What a run leaves, without clock readings, the plan and the paths, which may differ.
digest() {
    local output=$1
    (cd "$output/checkpoints/$(ls "$output/checkpoints" | grep -E '^[a-z]*-?[0-9]+$' | sort | tail -1)" && sha256sum -- *.safetensors)
    sed -E 's/"samples_per_second":[^,}]*,?//' "$output/metrics.jsonl" | sha256sum
}

for job in tiny towers; do
    # Files in a folder of our own, and 40 steps are enough.
    sed -e "s|^\[process\]|&\ncache_dir = \"$folder/cache-$job\"|" -e "s|^\[run\]|&\nsteps_max = 40|" \
        -e "s|^train_samples = 500_000|train_samples = 50_000|" "examples/$job.toml" >"$folder/$job.toml"
    train() {
        local name=$1; shift
        "$@" train "$folder/$job.toml" --quiet --output "$folder/$job-$name"
        digest "$folder/$job-$name" >"$folder/$job-$name.digest"
    }
    train thread "$campanile"
    for processes in 1 2 4; do
        train "$processes" timeout 120 "$mpirun" -n "$processes" "$campanile"
        if ! diff "$folder/$job-thread.digest" "$folder/$job-$processes.digest"; then
            echo "examples/$job.toml: $processes processes under MPICH end with other bits than threads"
            exit 1
        fi
        echo "examples/$job.toml: $processes processes under MPICH, the bits of threads"
    done
done
