"""PyTorch as a competitor: speaks the protocol of `README.md`, hosting several variants over one set of rows.

Variants share the rows because terabyte's tables are 5.2 GB: a process a variant would not fit. Only one
variant runs at a time, and what it computes does not depend on the values of the rows.
"""

import argparse
import json
import os
import resource
import sys
import time
from typing import Callable

# The AMX shim is for this process alone; compilers started by `torch.compile` must not inherit it.
os.environ.pop("LD_PRELOAD", None)

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

from torch_models import EPSILON, LEARNING_RATE, FusedTables, Network, PlainTables  # noqa: E402
from workload import SHAPES, Configuration, make_batches  # noqa: E402

WARM_STEPS = 3


def parse() -> tuple[Configuration, list[str]]:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--config", choices=list(SHAPES), required=True)
    flags.add_argument("--arch", choices=["dot", "dcn"], required=True)
    flags.add_argument("--ids", type=int, required=True)
    flags.add_argument("--batch", type=int, required=True)
    flags.add_argument("--precision", choices=["f32", "bf16"], required=True)
    flags.add_argument("--threads", type=int, required=True)
    flags.add_argument("--variants", required=True, help="comma-separated TABLES-MODE or TABLES-MODE@PRECISION")
    given = flags.parse_args()
    configuration = Configuration(given.config, given.arch, given.ids, given.batch, given.precision, given.threads)
    return configuration, given.variants.split(",")


class Tables:
    """The rows of all variants, and the state of plain tables, made when first asked for."""

    def __init__(self, dim: int):
        self.dim = dim
        self.fused = FusedTables(dim)
        self.plain: PlainTables | None = None
        self.plain_optimizer: torch.optim.Optimizer | None = None

    def get(self, kind: str) -> tuple[torch.nn.Module, torch.optim.Optimizer | None]:
        """The tables, and the optimizer to step when the backward pass does not do it."""
        if kind == "fused":
            return self.fused, None
        if self.plain is None:
            self.plain = PlainTables(self.dim, self.fused.weights())
            self.plain_optimizer = torch.optim.Adagrad(self.plain.parameters(), lr=LEARNING_RATE, eps=EPSILON)
        return self.plain, self.plain_optimizer


def make_step(configuration: Configuration, tables: Tables, variant: str) -> Callable:
    """A function that trains on one batch. `variant` is `fused-eager`, `plain-compiled@f32` and so on."""
    name, _, precision = variant.partition("@")
    kind, mode = name.split("-")
    network = Network(configuration.config, configuration.arch, "autograd" if mode == "compiled" else "by_hand")
    optimizer = torch.optim.Adagrad(network.parameters(), lr=LEARNING_RATE, eps=EPSILON, fused=True)
    forward = torch.compile(network, dynamic=False) if mode == "compiled" else network
    module, row_optimizer = tables.get(kind)
    low = (precision or configuration.precision) == "bf16"

    def step(dense: torch.Tensor, ids: torch.Tensor, labels: torch.Tensor) -> None:
        pooled = module(ids, configuration.ids)
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            logits = forward(dense, pooled)
        F.binary_cross_entropy_with_logits(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if row_optimizer is not None:
            row_optimizer.step()
            row_optimizer.zero_grad(set_to_none=True)

    return step


def cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    configuration, variants = parse()
    torch.manual_seed(0)
    torch.set_num_threads(configuration.threads)
    made = make_batches(configuration)
    batches = [
        (torch.from_numpy(dense), torch.from_numpy(ids), torch.from_numpy(labels).unsqueeze(1))
        for dense, ids, labels in zip(made.dense, made.ids, made.labels)
    ]
    tables = Tables(SHAPES[configuration.config].dim)
    steps, failures = {}, {}
    for variant in variants:
        try:
            step = make_step(configuration, tables, variant)
            for place in range(WARM_STEPS):
                step(*batches[place])
            steps[variant] = step
        except Exception as failure:  # A variant that PyTorch cannot run is a result, not a crash.
            failures[variant] = f"{type(failure).__name__}: {failure}".splitlines()[0][:300]
    info = {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "distinct_share": round(made.distinct_share(), 4),
        "variants": list(steps),
        "failures": failures,
    }
    print("ready", json.dumps(info), flush=True)

    position = 0
    for line in sys.stdin:
        words = line.split()
        seconds, step = float(words[1]), steps[words[2] if len(words) > 2 else variants[0]]
        samples, cpu, begin = 0, cpu_seconds(), time.perf_counter()
        while (wall := time.perf_counter() - begin) < seconds or samples == 0:
            step(*batches[position % len(batches)])
            position += 1
            samples += configuration.batch
        answer = {"samples": samples, "wall_s": wall, "cpu_s": cpu_seconds() - cpu}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
