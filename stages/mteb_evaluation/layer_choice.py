"""Choosing layers by the scores of evaluation tasks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.embed.choice import best_together
from permafrost.stages.embed.config import EmbedConfig, layers_of, with_layers
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.mteb_evaluation.evaluate import main_score
from permafrost.stages.mteb_evaluation.task import EvaluationTask
from permafrost.stages.mteb_evaluation.vectors import Embedding, FeaturesOf
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.progress import Progress, SilentProgress

SCORES = pa.schema(
    [
        ("layers", pa.string()),
        ("task", pa.string()),
        ("category", pa.string()),
        ("score", pa.float64()),
    ]
)
"""Every choice that was tried on every task, in the order in which they were; a score that is not a number is
null. `layers`: "4", or "3,4,6" of layers together."""


@dataclass(frozen=True)
class ChoiceTask:
    """A task by whose main score layers are chosen."""

    name: str
    config: EvaluationTask
    features: FeaturesOf


@dataclass(frozen=True)
class LayerChoice:
    """The layers that were chosen, and by which scores."""

    layers: tuple[int, ...]
    scores: pa.Table
    """Columns of `SCORES`."""

    @property
    def choice(self) -> dict[str, str]:
        """What was chosen, for tables."""
        return {"layers": ",".join(map(str, self.layers))}

    def save(self, folder: Path) -> None:
        """Write layers.json and scores.parquet."""
        content = json.dumps({"layers": list(self.layers)}) + "\n"
        (folder / "layers.json").write_text(content, encoding="utf-8")
        pq.write_table(self.scores, folder / "scores.parquet")

    @classmethod
    def load(cls, folder: Path) -> "LayerChoice":
        """Read what `save` wrote.

        Raises:
            CorruptDataError: a file is missing or broken.
        """
        try:
            record: dict[str, Any] = json.loads((folder / "layers.json").read_text("utf-8"))
            return cls(tuple(record["layers"]), pq.read_table(folder / "scores.parquet"))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise CorruptDataError(
                f"{folder} holds no choice of layers ({error}); delete the artifact and run again"
            ) from error


def choose_by_tasks(
    config: EmbedConfig,
    sizes: BackboneSizes,
    n_members: int,
    tasks: Sequence[ChoiceTask],
    most: int | None,
    progress: Progress,
) -> LayerChoice:
    """The layers of `layers: auto` that score best on tasks; see `best_together`.

    What is compared is the mean over kinds of task of the means over tasks of each kind, so that five tasks
    of one kind do not outvote one of another; a score that is not a number counts as 0. Vectors are not
    whitened. Value Aggregation (section 4.2) looks at the same scores by kind of task and chooses in words;
    HTP chooses one layer by retrieval. The rule is ours.

    Args:
        config: of the method.
        sizes: of the backbone.
        n_members: prompts of an ensemble; 1 for any other recipe.
        tasks: none on which the method is reported.
        most: the largest number of layers; None for any.
        progress: told every task that was scored.

    Raises:
        InputError: a task cannot be run, or no layer has a score that is a number on any task.
    """
    from permafrost.stages.encoder.vectors import MethodVectors

    candidates = [k for k in layers_of(config, sizes) if k != "final"]
    kinds = {task.name: task.config.category for task in tasks}
    found: list[dict[str, object]] = []
    n_sets = len(candidates) + len(candidates[:most]) - 1
    progress.start("choose layers", n_sets * len(tasks), "tasks")

    def score(layers: tuple[int, ...]) -> float:
        fixed = with_layers(config.model_copy(update={"whitening": None}), layers)
        vectors = MethodVectors(fixed, sizes, n_members)
        scores: dict[str, float | None] = {}
        for task in tasks:
            identity = {"layers": list(layers), "task": task.name}
            embedding = Embedding(
                f"layers {fixed.layers}", vectors, task.features, identity, SilentProgress()
            )
            scores[task.name] = main_score(task.config, task.name, embedding)
            progress.advance(1)
        found.extend(
            {"layers": fixed.layers, "task": name, "category": kinds[name], "score": value}
            for name, value in scores.items()
        )
        return mean_of_kinds(scores, kinds)

    try:
        chosen = best_together(candidates, score, most)
    finally:
        progress.finish()
    if all(row["score"] is None for row in found):
        raise InputError(
            f"no layer of {', '.join(map(str, candidates))} tells the texts of {', '.join(kinds)} apart: all "
            f"their similarities are equal; choose another method, or other tasks"
        )
    columns = {name: [row[name] for row in found] for name in SCORES.names}
    return LayerChoice(chosen, pa.table(columns, schema=SCORES))


def mean_of_kinds(scores: Mapping[str, float | None], kinds: Mapping[str, str]) -> float:
    """The mean over kinds of the means over the tasks of each; None counts as 0.

    Args:
        scores: by task.
        kinds: of the tasks.
    """
    by_kind: dict[str, list[float]] = {}
    for task, value in scores.items():
        by_kind.setdefault(kinds[task], []).append(0.0 if value is None else value)
    return sum(sum(some) / len(some) for some in by_kind.values()) / len(by_kind)
