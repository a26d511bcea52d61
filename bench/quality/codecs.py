#!/usr/bin/env python3
"""What a codec on the wire does to a model: the same job with every form of vectors and gradients, several seeds.

    bench/quality/codecs.py JOB [--campanile PROGRAM] [--seeds 5]

The job must set `seed` in [run] and have no [run.exchange]. A codec rounds the same values on one rank as on many, so one
rank shows its effect. Prints a Markdown table: NE and AUC on the test split, mean and standard deviation over the seeds,
and the difference in NE to f32, seed by seed, with its standard error.
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import tempfile

FORMS = [("f32", "f32"), ("f16", "f16"), ("bf16", "bf16"), ("f16", "bf16"), ("int8", "f32"), ("f32", "int8"), ("int8", "int8")]


def train(program, text, seed, forward, backward, folder):
    """Trains once and returns NE and AUC on the test rows."""
    text, changed = re.subn(r"(?m)^seed = \d+", f"seed = {seed}", text, count=1)
    assert changed == 1, "the job must set `seed` in [run]"
    text += f'\n[run.exchange]\nforward = "{forward}"\nbackward = "{backward}"\n'
    job = pathlib.Path(folder, "job.toml")
    job.write_text(text)
    report = pathlib.Path(folder, "report.json")
    output = pathlib.Path(folder, f"{forward}-{backward}-{seed}")
    subprocess.run([program, "train", job, "--output", output, "--report", report, "--quiet"], check=True)
    values = json.loads(report.read_text())["evaluation"]["test"]["tasks"][0]
    return values["ne"], values["auc"]


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("job", type=pathlib.Path)
    arguments.add_argument("--campanile", default="target/release/campanile")
    arguments.add_argument("--seeds", type=int, default=5)
    arguments = arguments.parse_args()
    text = arguments.job.read_text()
    exact = []
    print("| vectors | gradients | NE | AUC | NE less f32's, in 1e-5 |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for forward, backward in FORMS:
            found = [train(arguments.campanile, text, seed, forward, backward, folder) for seed in range(1, arguments.seeds + 1)]
            nes, aucs = zip(*found)
            exact = exact or nes
            differences = [(ne - base) * 1e5 for ne, base in zip(nes, exact)]
            spread = statistics.stdev(differences) / len(differences) ** 0.5 if len(differences) > 1 else 0.0
            line = [f"{statistics.mean(values):.5f} ± {statistics.stdev(values):.5f}" for values in (nes, aucs)]
            print(f"| {forward} | {backward} | {line[0]} | {line[1]} | {statistics.mean(differences):+.1f} ± {spread:.1f} |", flush=True)


if __name__ == "__main__":
    main()
