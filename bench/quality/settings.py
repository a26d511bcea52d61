"""The models and hyper-parameters compared, the same on both sides. Chosen on validation rows, with PyTorch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    """How one dataset is trained. Rows follow row-wise AdaGrad, dense weights AdaGrad, both at a constant rate."""

    batch_size: int
    epochs: int
    dim: int
    bottom: tuple[int, ...]  # DLRM's; ends with `dim`
    top: tuple[int, ...]
    cross_layers: int
    cross_rank: int | None  # None: full matrices
    structure: str  # of DCN-v2: "stacked" or "parallel"
    row_rate: float
    dense_rate: float
    row_bound: float = 0.05  # first values of rows are uniform within
    epsilon: float = 1e-8


SETTINGS = {
    "movielens_1m": Settings(
        batch_size=512, epochs=1, dim=16, bottom=(64, 32, 16), top=(128, 64), cross_layers=3, cross_rank=None,
        structure="stacked", row_rate=0.1, dense_rate=0.01,
    ),
    "criteo_kaggle_10k": Settings(
        batch_size=128, epochs=1, dim=8, bottom=(64, 32, 8), top=(64, 32), cross_layers=2, cross_rank=32,
        structure="parallel", row_rate=0.02, dense_rate=0.01,
    ),
    "criteo_attribution_165k": Settings(
        batch_size=256, epochs=2, dim=8, bottom=(32, 8), top=(64, 32), cross_layers=2, cross_rank=None,
        structure="parallel", row_rate=0.1, dense_rate=0.01,
    ),
    "avazu_10k": Settings(
        batch_size=128, epochs=1, dim=8, bottom=(32, 8), top=(64, 32), cross_layers=2, cross_rank=32,
        structure="stacked", row_rate=0.02, dense_rate=0.01,
    ),
}  # fmt: skip

ARCHITECTURES = ["dlrm", "dcn"]
