"""The ratios to the best PyTorch variant that the engine sets itself, and the configurations measured."""

from dataclasses import dataclass

from workload import Configuration


@dataclass(frozen=True)
class Goal:
    """Ours / best peer; `stretch` is what would be better still."""

    ratio: float
    stretch: float | None = None

    def text(self) -> str:
        return f"{self.ratio:.1f}x" + (f" [{self.stretch:.1f}x]" if self.stretch else "")


# (config, arch, ids, batch) -> goal in f32, goal in bf16. Configurations without a goal are measured all the same.
GOALS: dict[tuple[str, str, int, int], tuple[Goal, Goal] | None] = {
    ("kaggle", "dot", 1, 128): (Goal(2.0, 3.0), Goal(4.0, 6.0)),
    ("kaggle", "dot", 1, 2048): (Goal(1.6, 1.8), Goal(2.5, 3.5)),
    ("kaggle", "dot", 1, 8192): (Goal(1.6, 1.8), Goal(1.9, 2.5)),
    ("kaggle", "dot", 20, 128): None,
    ("kaggle", "dot", 20, 2048): (Goal(2.0, 2.8), Goal(2.5, 4.0)),
    ("kaggle", "dot", 20, 8192): None,
    ("kaggle", "dcn", 1, 2048): (Goal(1.5), Goal(2.0, 2.8)),
    ("kaggle", "dcn", 1, 8192): None,
    ("terabyte", "dot", 1, 128): None,
    ("terabyte", "dot", 1, 2048): (Goal(1.3, 1.5), Goal(2.0, 2.5)),
    ("terabyte", "dot", 1, 8192): None,
    ("terabyte", "dot", 20, 2048): (Goal(2.0, 3.0), Goal(2.0, 3.5)),
    ("terabyte", "dcn", 1, 2048): (Goal(1.3), Goal(2.0, 2.5)),
}

# Two threads against one, ours.
SCALING_GOAL = 1.85


def goal_of(configuration: Configuration) -> Goal | None:
    goals = GOALS.get((configuration.config, configuration.arch, configuration.ids, configuration.batch))
    if goals is None:
        return None
    return goals[0] if configuration.precision == "f32" else goals[1]


def standard_configurations(precisions: list[str], threads: int, only_goals: bool) -> list[Configuration]:
    """All standard configurations, those with a goal first, so that a cut run has measured what matters."""
    ordered = sorted(GOALS, key=lambda key: GOALS[key] is None)
    return [
        Configuration(*key, precision, threads)
        for key in ordered
        if not (only_goals and GOALS[key] is None)
        for precision in precisions
    ]
