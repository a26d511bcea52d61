"""The models in PyTorch, with Campanile's formulas: the same layers, first values, optimizers and order of rows."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from datasets import Dataset, Feature, Samples, training_order
from metrics import Quality, quality
from settings import Settings


def mlp(widths: list[int]) -> nn.Sequential:
    """Linear layers, each with a ReLU behind it."""
    layers: list[nn.Module] = []
    for before, after in zip(widths, widths[1:]):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers)


def initialise(network: nn.Module) -> None:
    """Campanile's first values of dense weights, drawn by PyTorch's generator: weights normal with variance
    2 / (in + out), biases in front of a ReLU normal with variance 1 / out, other biases zero."""
    before_relu = set()
    for part in network.modules():
        if isinstance(part, nn.Sequential):
            before_relu |= {layer for layer, after in zip(part, part[1:]) if isinstance(after, nn.ReLU)}
    for layer in network.modules():
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=math.sqrt(2.0 / (layer.in_features + layer.out_features)))
            if layer in before_relu:
                nn.init.normal_(layer.bias, std=math.sqrt(1.0 / layer.out_features))
            elif layer.bias is not None:
                nn.init.zeros_(layer.bias)


class Dlrm(nn.Module):
    """Bottom MLP, dots of all pairs of vectors, top MLP."""

    def __init__(self, settings: Settings, dense_count: int, feature_count: int):
        super().__init__()
        self.bottom = mlp([dense_count, *settings.bottom])
        n = feature_count + 1
        rows, columns = torch.tril_indices(n, n, -1)
        self.register_buffer("pairs", rows * n + columns)
        self.top = mlp([settings.dim + n * (n - 1) // 2, *settings.top])
        self.logit = nn.Linear(settings.top[-1], 1)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        vectors = torch.cat([x.unsqueeze(1), pooled], dim=1)
        dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
        return self.logit(self.top(torch.cat([x, dots], dim=1))).squeeze(1)


class Dcn(nn.Module):
    """DCN-v2 on the dense inputs and all vectors side by side; deep MLP behind the cross layers or beside them."""

    def __init__(self, settings: Settings, dense_count: int, feature_count: int):
        super().__init__()
        width = dense_count + feature_count * settings.dim
        self.parallel = settings.structure == "parallel"
        self.cross = nn.ModuleList(self.cross_matrix(width, settings.cross_rank) for _ in range(settings.cross_layers))
        self.deep = mlp([width, *settings.top])
        self.logit = nn.Linear(settings.top[-1] + (width if self.parallel else 0), 1)

    @staticmethod
    def cross_matrix(width: int, rank: int | None) -> nn.Module:
        if rank is None:
            return nn.Linear(width, width)
        return nn.Sequential(nn.Linear(width, rank, bias=False), nn.Linear(rank, width))

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        first = crossed = torch.cat([dense, pooled.flatten(1)], dim=1)
        for matrix in self.cross:
            crossed = first * matrix(crossed) + crossed
        if self.parallel:
            return self.logit(torch.cat([crossed, self.deep(first)], dim=1)).squeeze(1)
        return self.logit(self.deep(crossed)).squeeze(1)


class Rows:
    """All tables below each other in one tensor, with row-wise AdaGrad: `s += mean(g*g); w -= lr / (sqrt(s) + eps) * g`."""

    def __init__(self, features: list[Feature], settings: Settings):
        counts = [feature.row_count for feature in features]
        self.first_rows = np.concatenate([[0], np.cumsum(counts)])
        self.weight = torch.empty(int(self.first_rows[-1]), settings.dim)
        self.weight.uniform_(-settings.row_bound, settings.row_bound).requires_grad_()
        self.squares = torch.zeros(len(self.weight))
        self.settings = settings

    def bags(self, samples: Samples, start: int, end: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Ids, bag starts and the weight of every id, which makes a mean of a sum."""
        ids, lengths = [], []
        for feature, first in zip(samples.features, self.first_rows):
            offsets = feature.offsets[start : end + 1]
            ids.append(feature.ids[offsets[0] : offsets[-1]] + first)
            lengths.append(np.diff(offsets))
        length = np.concatenate(lengths)
        starts = np.concatenate([[0], np.cumsum(length)[:-1]])
        weights = np.repeat(1.0 / np.maximum(length, 1), length).astype(np.float32)
        return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(starts), torch.from_numpy(weights)

    def pool(self, samples: Samples, start: int, end: int) -> torch.Tensor:
        ids, starts, weights = self.bags(samples, start, end)
        pooled = F.embedding_bag(ids, self.weight, starts, mode="sum", sparse=True, per_sample_weights=weights)
        return pooled.view(len(samples.features), end - start, -1).transpose(0, 1)

    @torch.no_grad()
    def update(self) -> None:
        gradient = self.weight.grad.coalesce()
        rows, values = gradient.indices()[0], gradient.values()
        self.squares[rows] += values.square().mean(dim=1)
        scale = self.settings.row_rate / (self.squares[rows].sqrt() + self.settings.epsilon)
        self.weight[rows] -= scale.unsqueeze(1) * values
        self.weight.grad = None


class Model:
    """Rows and a network on top."""

    def __init__(self, dataset: Dataset, settings: Settings, architecture: str, seed: int):
        torch.manual_seed(seed)
        features = dataset.train.features
        self.rows = Rows(features, settings)
        kind = {"dlrm": Dlrm, "dcn": Dcn}[architecture]
        self.network = kind(settings, len(dataset.train.dense_names), len(features))
        initialise(self.network)
        self.optimizer = torch.optim.Adagrad(
            self.network.parameters(), lr=settings.dense_rate, eps=settings.epsilon, fused=True
        )

    def logits(self, samples: Samples, start: int, end: int) -> torch.Tensor:
        return self.network(torch.from_numpy(samples.dense[start:end]), self.rows.pool(samples, start, end))

    def step(self, samples: Samples, start: int, end: int) -> float:
        loss = F.binary_cross_entropy_with_logits(
            self.logits(samples, start, end), torch.from_numpy(samples.label[start:end])
        )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.rows.update()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, samples: Samples, batch_size: int = 8192) -> Quality:
        starts = range(0, len(samples), batch_size)
        logits = [self.logits(samples, start, min(start + batch_size, len(samples))) for start in starts]
        return quality(torch.cat(logits).numpy(), samples.label)


def train(dataset: Dataset, settings: Settings, architecture: str, seed: int) -> dict[str, Quality]:
    """Trains once; the qualities of `valid` and `test` at the end."""
    model = Model(dataset, settings, architecture, seed)
    ordered = dataset.train.take(training_order(len(dataset.train), settings.batch_size, settings.epochs, seed))
    for start in range(0, len(ordered), settings.batch_size):
        model.step(ordered, start, start + settings.batch_size)
    return {"valid": model.evaluate(dataset.valid), "test": model.evaluate(dataset.test)}
