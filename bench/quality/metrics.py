"""Log loss, normalised entropy and AUC of predictions."""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Quality:
    """How good predictions are; NE is the log loss over that of always predicting the rows' own mean label."""

    ne: float
    logloss: float
    auc: float


def entropy(rate: float) -> float:
    return -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))


def auc(logits: np.ndarray, labels: np.ndarray) -> float:
    """Exact: the share of (positive, negative) pairs in the right order, ties counting half."""
    order = np.argsort(logits, kind="stable")
    ordered = logits[order]
    first = np.concatenate([[True], ordered[1:] != ordered[:-1]])
    group = np.cumsum(first) - 1
    sizes = np.bincount(group)
    # The mean rank, counted from 1, of each group of equal logits.
    ranks = np.cumsum(sizes) - (sizes - 1) / 2
    positive = labels[order] > 0.5
    positives, negatives = int(positive.sum()), int((~positive).sum())
    rank_sum = float(ranks[group][positive].sum())
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def quality(logits: np.ndarray, labels: np.ndarray) -> Quality:
    logits, labels = logits.astype(np.float64), labels.astype(np.float64)
    losses = np.maximum(logits, 0) - logits * labels + np.log1p(np.exp(-np.abs(logits)))
    logloss = float(losses.mean())
    return Quality(logloss / entropy(float(labels.mean())), logloss, auc(logits, labels))
