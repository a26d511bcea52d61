"""The job file that has Campanile train what `torch_side.py` trains."""

from dataclasses import dataclass
from pathlib import Path

from datasets import Samples
from files import SEPARATOR
from settings import Settings


@dataclass(frozen=True)
class Place:
    """Where one run's files are: `train.csv` or `train.parquet` and so on."""

    data: Path
    output: Path
    form: str  # "csv" or "parquet"

    def file(self, split: str, seed: int | None = None) -> Path:
        name = split if seed is None else f"{split}_{seed}"
        return self.data / f"{name}.{self.form}"


def quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def column_sections(samples: Samples, form: str) -> list[str]:
    sections = ['[[run.data.label]]\nname = "label"']
    sections += [f'[[run.data.dense]]\nname = "{name}"' for name in samples.dense_names]
    for feature in samples.features:
        lines = ["[[run.data.sparse]]", f'name = "{feature.name}"', 'map = "direct"', f"rows = {feature.row_count}"]
        if feature.is_list():
            lines += ["list = true", 'pooling = "mean"']
            lines += [f'separator = "{SEPARATOR}"'] if form == "csv" else []
        sections.append("\n".join(lines))
    return sections


def network_section(settings: Settings, architecture: str) -> str:
    top = list(settings.top)
    if architecture == "dlrm":
        return f'[run.model]\nkind = "dlrm"\nbottom = {list(settings.bottom)}\ntop = {top}'
    rank = settings.cross_rank or '"full"'
    return (
        f'[run.model]\nkind = "dcn"\nbottom = []\ncross_layers = {settings.cross_layers}\ncross_rank = {rank}\n'
        f'structure = "{settings.structure}"\ndeep = {top}'
    )


def job_text(samples: Samples, settings: Settings, architecture: str, seed: int, place: Place) -> str:
    """One pass over a file that already holds all epochs, in its order."""
    formula = f"epsilon = {settings.epsilon:g}, initial = 0.0"
    return "\n\n".join(
        [
            f"[run]\nseed = {seed}\nbatch_size = {settings.batch_size}\nepochs = 1",
            f'[run.data]\nkind = "{place.form}"\nsplit = "by_file"\nshuffle = false',
            *column_sections(samples, place.form),
            f'[run.tables]\ndim = {settings.dim}\ninit = {{ kind = "uniform", bound = {settings.row_bound:g} }}',
            network_section(settings, architecture),
            f'[run.sparse]\noptimizer = {{ kind = "rowwise_adagrad", {formula} }}\nlearning_rate = {settings.row_rate:g}',
            f'[run.dense]\noptimizer = {{ kind = "adagrad", {formula} }}\nlearning_rate = {settings.dense_rate:g}',
            "[run.evaluate]\nevery_steps = 0",
            f"[process]\ncache_dir = {quoted(place.output / 'cache')}\noutput_dir = {quoted(place.output / 'run')}",
            f"[process.data]\ntrain = [{quoted(place.file('train', seed))}]\nvalid = [{quoted(place.file('valid'))}]\n"
            f"test = [{quoted(place.file('test'))}]\n",
        ]
    )
