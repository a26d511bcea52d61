"""PyTorch and onnxruntime as scorers on one thread: prints `ready`, answers `go SECONDS BATCH VARIANT` with a line of JSON.

Variants: `eager`, `jit` (traced and frozen), `compile` (torch.compile, static shapes), `freeze` (the same with the weights as
constants, which the compiler packs beforehand) and `ort` (onnxruntime, the model exported by torch.onnx). With `-bf16` the dense
network's weights and activations are bfloat16; with `-autocast` PyTorch itself chooses where. onnxruntime has no products in
bfloat16 on x86. A call takes tensors that are ready and gives probabilities, tables and sigmoid included.
"""

import argparse
import copy
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from torch_models import Network
from workload import DENSE_COUNT, ROW_COUNTS, SHAPES, zipf_rows

REQUESTS = 32


class Model(nn.Module):
    """Tables, network and sigmoid; `rows` is [batch, 26]."""

    def __init__(self, config: str, row_counts: list[int]):
        super().__init__()
        dim = SHAPES[config].dim
        self.tables = nn.ModuleList(nn.Embedding(rows, dim) for rows in row_counts)
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.01, 0.01)
        self.network = Network(config, "dot", "autograd")
        self.dtype = torch.float32

    def forward(self, dense: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        pooled = torch.stack([table(rows[:, place]) for place, table in enumerate(self.tables)], dim=1)
        return torch.sigmoid(self.network(dense.to(self.dtype), pooled).float())

    def narrow(self) -> "Model":
        """The same with a dense network in bfloat16; the tables are shared."""
        twin = copy.copy(self)
        twin._modules = dict(self._modules, network=copy.deepcopy(self.network).to(torch.bfloat16))
        twin.dtype = torch.bfloat16
        return twin


def variants(model: Model, example: tuple, names: list[str]) -> dict:
    return {name: variant(model, example, *name.partition("-")[::2]) for name in names}


def variant(model: Model, example: tuple, way: str, precision: str):
    if precision == "autocast":
        call = variant(model, example, way, "")

        def autocast(dense, rows):
            with torch.autocast("cpu", torch.bfloat16):
                return call(dense, rows)

        return autocast
    if precision == "bf16":
        model = model.narrow()
    if way == "eager":
        return model
    if way == "jit":
        return torch.jit.freeze(torch.jit.trace(model, example))
    if way == "compile":
        return torch.compile(model, dynamic=False)
    if way == "freeze":
        return torch.compile(model, dynamic=False, options={"freezing": True})
    if way == "ort" and not precision:
        return onnx_session(model, example)
    raise SystemExit(f"there is no variant `{way}-{precision}`")


def onnx_session(model: Model, example: tuple):
    import onnxruntime

    axes = {name: {0: "batch"} for name in ["dense", "rows", "probabilities"]}
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.onnx")
        torch.onnx.export(
            model, example, path, input_names=["dense", "rows"], output_names=["probabilities"],
            dynamic_axes=axes, dynamo=False, opset_version=17,
        )  # fmt: skip
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda dense, rows: session.run(None, {"dense": dense.numpy(), "rows": rows.numpy()})[0]


def round_of(call, requests: list, seconds: float) -> dict:
    for request in requests[:8]:
        call(*request)
    times, place = [], 0
    begin = time.perf_counter()
    while True:
        dense, rows = requests[place % REQUESTS]
        start = time.perf_counter()
        call(dense, rows)
        end = time.perf_counter()
        times.append((end - start) * 1e6)
        place += 1
        if end - begin >= seconds:
            break
    p50, p99 = np.percentile(times, [50, 99])
    return {"requests": place, "p50_us": p50, "p99_us": p99, "min_us": min(times)}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--config", choices=SHAPES, required=True)
    flags.add_argument("--shrink", type=int, default=1)
    flags.add_argument("--batch", default="1,64,512")
    flags.add_argument("--variants", default="eager,jit,compile,ort")
    arguments = flags.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # Every variant and batch size is compiled for itself; beyond the usual limit of 8 a call would quietly not be.
    torch._dynamo.config.recompile_limit = 64
    random = np.random.default_rng(0)
    row_counts = [max(1, rows // arguments.shrink) for rows in ROW_COUNTS]
    with torch.no_grad():
        model = Model(arguments.config, row_counts).eval()
        sets = {}
        for batch in map(int, arguments.batch.split(",")):
            rows = np.stack([zipf_rows(random, count, batch * REQUESTS) for count in row_counts], axis=1)
            rows = torch.from_numpy(rows.astype(np.int64)).view(REQUESTS, batch, -1)
            dense = torch.rand(REQUESTS, batch, DENSE_COUNT)
            sets[batch] = list(zip(dense, rows))
        calls = variants(model, sets[max(sets)][0], arguments.variants.split(","))
        for call in calls.values():
            for requests in sets.values():
                call(*requests[0])
        import onnxruntime

        about = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
        print("ready " + json.dumps(about), flush=True)
        for line in sys.stdin:
            _, seconds, batch, variant = line.split()
            print(json.dumps(round_of(calls[variant], sets[int(batch)], float(seconds))), flush=True)


if __name__ == "__main__":
    main()
