"""DLRM and DCN-v2 in PyTorch, written as a careful user would write them for speed on a CPU."""

import torch
from torch import nn

from workload import CROSS_LAYERS, CROSS_RANK, DENSE_COUNT, ROW_COUNTS, SHAPES, TABLE_COUNT

LEARNING_RATE = 0.01
EPSILON = 1e-8


def mlp(widths: list[int], relu_at_end: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for place, (before, after) in enumerate(zip(widths, widths[1:])):
        layers.append(nn.Linear(before, after))
        if relu_at_end or place < len(widths) - 2:
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


class PairwiseDots(torch.autograd.Function):
    """Dots of all pairs of vectors: [batch, n, dim] to [batch, n * (n - 1) / 2].

    Left to autograd, the gradient of the gather and of the two operands of `bmm` costs two products and a
    slow scatter; by hand it is one product with the symmetric matrix of gradients.
    """

    @staticmethod
    def forward(ctx, vectors, pairs, mirrored):
        ctx.save_for_backward(vectors, pairs, mirrored)
        return torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, pairs)

    @staticmethod
    def backward(ctx, gradient):
        vectors, pairs, mirrored = ctx.saved_tensors
        n = vectors.shape[1]
        # `mirrored` names for every cell of the n x n matrix its pair; the diagonal names a column of zeros.
        padded = nn.functional.pad(gradient, (0, 1))
        square = padded.index_select(1, mirrored).view(-1, n, n)
        return torch.bmm(square, vectors), None, None


class Network(nn.Module):
    """Everything but the tables: bottom MLP, interaction, top MLP. `pooled` is [batch, 26, dim]."""

    def __init__(self, config: str, arch: str, interaction: str):
        super().__init__()
        shape = SHAPES[config]
        self.arch, self.interaction = arch, interaction
        n = TABLE_COUNT + 1
        self.bottom = mlp([DENSE_COUNT, *shape.bottom], relu_at_end=True)
        rows, columns = torch.tril_indices(n, n, -1)
        mirrored = torch.full((n, n), len(rows))
        mirrored[rows, columns] = mirrored[columns, rows] = torch.arange(len(rows))
        self.register_buffer("pairs", rows * n + columns)
        self.register_buffer("mirrored", mirrored.flatten())
        if arch == "dot":
            width = n * (n - 1) // 2 + shape.dim
        else:
            width = n * shape.dim
            self.down = nn.ModuleList(nn.Linear(width, CROSS_RANK, bias=False) for _ in range(CROSS_LAYERS))
            self.up = nn.ModuleList(nn.Linear(CROSS_RANK, width) for _ in range(CROSS_LAYERS))
        self.top = mlp([width, *shape.top, 1], relu_at_end=False)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        vectors = torch.cat([x.unsqueeze(1), pooled.to(x.dtype)], dim=1)
        if self.arch == "dot":
            if self.interaction == "by_hand":
                dots = PairwiseDots.apply(vectors, self.pairs, self.mirrored)
            else:
                dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1).index_select(1, self.pairs)
            return self.top(torch.cat([x, dots], dim=1))
        first = crossed = vectors.flatten(1)
        for down, up in zip(self.down, self.up):
            crossed = first * up(down(crossed)) + crossed
        return self.top(crossed)


class FusedTables(nn.Module):
    """FBGEMM's table-batched embedding on the CPU: row-wise AdaGrad applied inside the backward pass."""

    def __init__(self, dim: int):
        super().__init__()
        from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        self.dim = dim
        self.tables = SplitTableBatchedEmbeddingBagsCodegen(
            [(rows, dim, EmbeddingLocation.HOST, ComputeDevice.CPU) for rows in ROW_COUNTS],
            optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
            learning_rate=LEARNING_RATE,
            eps=EPSILON,
            weights_precision=SparseType.FP32,
            output_dtype=SparseType.FP32,
        )
        with torch.no_grad():
            for weights in self.weights():
                weights.uniform_(-0.01, 0.01)

    def weights(self) -> list[torch.Tensor]:
        return self.tables.split_embedding_weights()

    def forward(self, ids: torch.Tensor, ids_per_bag: int) -> torch.Tensor:
        offsets = torch.arange(0, ids.numel() + 1, ids_per_bag)
        return self.tables(ids.view(-1), offsets).view(-1, TABLE_COUNT, self.dim)


class PlainTables(nn.Module):
    """One `EmbeddingBag` a table with sparse gradients; the rows may be those of another module."""

    def __init__(self, dim: int, weights: list[torch.Tensor]):
        super().__init__()
        self.bags = nn.ModuleList(
            nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, _weight=weight)
            for rows, weight in zip(ROW_COUNTS, weights)
        )

    def forward(self, ids: torch.Tensor, ids_per_bag: int) -> torch.Tensor:
        offsets = torch.arange(0, ids.shape[1], ids_per_bag)
        return torch.stack([bag(ids[table], offsets) for table, bag in enumerate(self.bags)], dim=1)
