"""Records the losses of small models trained by PyTorch, for `crates/oracle/tests/pytorch.rs`.

Weights, rows and batches come from one integer formula that the Rust test repeats, so no fixture but the
losses is kept. Layers are PyTorch's own functions, gradients its autograd's; optimizers are written plainly,
and for one model PyTorch's own.

Run with `python bench/truth/record.py` (needs torch); it rewrites crates/oracle/tests/pytorch.json.
"""

import json
import pathlib

import torch
from torch.nn import functional as F

SAMPLES, BATCHES, STEPS, ROWS = 32, 4, 20, 40
OUTPUT = pathlib.Path(__file__).resolve().parents[2] / "crates" / "oracle" / "tests" / "pytorch.json"


def bits(kind, index):
    """32 bits that depend on two numbers only."""
    x = (index * 2654435761 + kind * 2246822519 + 374761393) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 2246822519) & 0xFFFFFFFF
    x = ((x ^ (x >> 13)) * 3266489917) & 0xFFFFFFFF
    return x ^ (x >> 16)


def value(kind, index):
    """A number in [-1, 1) that f32 holds exactly."""
    return (bits(kind, index) >> 8) / (1 << 23) - 1.0


def values(kind, count, scale, start=0):
    numbers = torch.tensor([value(kind, start + i) for i in range(count)], dtype=torch.float32)
    return numbers * torch.tensor(scale, dtype=torch.float32)


class Weights:
    """Dense weights, made in the order of the flat vector."""

    def __init__(self):
        self.all, self.count = [], 0

    def make(self, *shape):
        size = torch.Size(shape).numel()
        weight = values(1, size, 0.4, start=self.count).reshape(shape).clone().requires_grad_()
        self.count += size
        self.all.append(weight)
        return weight

    def mlp(self, inputs, widths):
        layers = []
        for width in widths:
            layers.append((self.make(width, inputs), self.make(width)))
            inputs = width
        return layers


def hidden(x, layers):
    for weight, bias in layers:
        x = F.relu(F.linear(x, weight, bias))
    return x


def logits(x, layers):
    x = hidden(x, layers[:-1])
    return F.linear(x, *layers[-1])


class Dlrm:
    """Dense 4 -> 16 -> 8; dots of all pairs; heads of 12 -> 1 for each task."""

    def __init__(self, weights, dims, tasks):
        self.bottom = weights.mlp(4, [16, 8])
        self.projections = [None if dim == 8 else weights.make(8, dim) for dim in dims]
        vectors = 1 + len(dims)
        self.heads = [weights.mlp(8 + vectors * (vectors - 1) // 2, [12, 1]) for _ in range(tasks)]

    def __call__(self, dense, pooled):
        first = hidden(dense, self.bottom)
        projected = [x if w is None else F.linear(x, w) for x, w in zip(pooled, self.projections)]
        vectors = torch.stack([first] + projected, dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2))
        rows, columns = torch.tril_indices(vectors.shape[1], vectors.shape[1], offset=-1)
        x = torch.cat([first, dots[:, rows, columns]], dim=1)
        return torch.cat([logits(x, head) for head in self.heads], dim=1)


class Dcn:
    """Dense 4 -> 6 beside all vectors; two cross layers of rank 3; stacked deep 12 -> 7 -> 1."""

    def __init__(self, weights, dims, tasks):
        self.bottom = weights.mlp(4, [6])
        width = 6 + sum(dims)
        self.cross = [(weights.make(3, width), weights.make(width, 3), weights.make(width)) for _ in range(2)]
        self.deep = weights.mlp(width, [12, 7, tasks])

    def __call__(self, dense, pooled):
        x0 = torch.cat([hidden(dense, self.bottom)] + pooled, dim=1)
        x = x0
        for v, u, bias in self.cross:
            x = x0 * F.linear(F.linear(x, v), u, bias) + x
        return logits(x, self.deep)


class Mlp:
    """Dense 4 beside all vectors; 10 -> one logit for each task."""

    def __init__(self, weights, dims, tasks):
        self.layers = weights.mlp(4 + sum(dims), [10, tasks])

    def __call__(self, dense, pooled):
        return logits(torch.cat([dense] + pooled, dim=1), self.layers)


def sgd(rate, momentum=0.0):
    def step(weight, gradient, state):
        state["u"] = momentum * state.get("u", 0.0) + gradient
        return weight - rate * state["u"]

    return step


def adagrad(rate, epsilon=1e-8):
    def step(weight, gradient, state):
        state["s"] = state.get("s", 0.0) + gradient * gradient
        return weight - rate * gradient / (state["s"].sqrt() + epsilon)

    return step


def rowwise_adagrad(rate, epsilon=1e-8):
    """A row that a batch does not touch has gradient zero, and so neither it nor its sum moves."""

    def step(weight, gradient, state):
        state["s"] = state.get("s", 0.0) + (gradient * gradient).mean(dim=1, keepdim=True)
        return weight - rate / (state["s"].sqrt() + epsilon) * gradient

    return step


def library(make):
    """A rule by one of PyTorch's own optimizers."""

    def step(weight, gradient, state):
        if "optimizer" not in state:
            state["weight"] = weight.detach().clone()
            state["optimizer"] = make([state["weight"]])
        state["weight"].grad = gradient.clone()
        state["optimizer"].step()
        return state["weight"]

    return step


def make_batch(step, features, tasks):
    """Bags, dense inputs, labels and weights of one step. The label follows the inputs and batches come back,
    so there is something to learn."""
    base = step % BATCHES * SAMPLES
    dense = torch.tensor([[value(2, (base + n) * 4 + i) for i in range(4)] for n in range(SAMPLES)])
    bags = []
    for f in range(features):
        length = lambda n: 1 if f == 0 else bits(3, (base + n) * 8 + f) % 4
        bags.append([[bits(4, ((base + n) * 8 + f) * 4 + p) % ROWS for p in range(length(n))] for n in range(SAMPLES)])
    labels, weights = [], []
    for n in range(SAMPLES):
        weights.append(0.5 + abs(value(5, base + n)))
        row = []
        for task in range(tasks):
            score = dense[n, task].item() + (0.5 if bags[0][n][0] % 3 == task else -0.25)
            absent = tasks > 1 and bits(6, (base + n) * 2 + task) % 5 == 0
            row.append(float("nan") if absent else float(score > 0.0))
        labels.append(row)
    return dense.float(), bags, torch.tensor(labels, dtype=torch.float64), torch.tensor(weights).float().double()


def pool(table, bags, how, base, f):
    vectors = []
    for n, bag in enumerate(bags):
        rows = table[torch.tensor(bag, dtype=torch.long)]
        if how == "weighted":
            given = torch.tensor([value(7, ((base + n) * 8 + f) * 4 + p) for p in range(len(bag))])
            rows = rows * given.float().reshape(-1, 1)
        total = rows.sum(dim=0)
        vectors.append(total / len(bag) if how == "mean" and bag else total)
    return torch.stack(vectors)


def train(network, dims, poolings, tasks, dense_rule, sparse_rule):
    weights = Weights()
    model = network(weights, dims, tasks)
    tables = [values(20 + t, ROWS * dim, 0.5).reshape(ROWS, dim).clone().requires_grad_() for t, dim in enumerate(dims)]
    states = [{} for _ in weights.all + tables]
    task_weights = torch.tensor([1.0, 0.5][:tasks], dtype=torch.float64)
    losses = []
    for step in range(STEPS):
        dense, bags, labels, sample_weights = make_batch(step, len(dims), tasks)
        pooled = [pool(t, b, how, step % BATCHES * SAMPLES, f) for f, (t, b, how) in enumerate(zip(tables, bags, poolings))]
        z = model(dense, pooled).double()
        present = ~labels.isnan()
        terms = F.binary_cross_entropy_with_logits(z, torch.where(present, labels, 0.0), reduction="none")
        weighted = terms * present * task_weights * (sample_weights.reshape(-1, 1) if tasks > 1 else 1.0)
        loss = weighted.sum() / SAMPLES
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for i, parameter in enumerate(weights.all + tables):
                rule = dense_rule if i < len(weights.all) else sparse_rule
                parameter.copy_(rule(parameter, parameter.grad, states[i]))
                parameter.grad = None
    return losses


def main():
    torch.set_num_threads(1)
    recorded = {
        "torch": torch.__version__.split("+")[0],
        "dlrm": train(Dlrm, [8, 8, 8], ["sum", "mean", "sum"], 1, sgd(0.5), rowwise_adagrad(0.1)),
        "dcn": train(Dcn, [5, 8, 3], ["sum", "mean", "sum"], 1, adagrad(0.05), rowwise_adagrad(0.1)),
        "dlrm_two_tasks": train(
            Dlrm, [8, 5, 3], ["sum", "mean", "weighted"], 2, sgd(0.1, momentum=0.9), sgd(2.0)
        ),
        "mlp_two_tasks": train(
            Mlp,
            [8, 5, 3],
            ["sum", "mean", "weighted"],
            2,
            library(lambda weights: torch.optim.AdamW(weights, lr=0.02, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1)),
            library(lambda weights: torch.optim.Adagrad(weights, lr=0.1, eps=1e-6, initial_accumulator_value=0.01)),
        ),
    }
    OUTPUT.write_text(json.dumps(recorded, indent=1) + "\n")
    for name in list(recorded)[1:]:
        print(name, recorded[name][0], "->", recorded[name][-1])


if __name__ == "__main__":
    main()
