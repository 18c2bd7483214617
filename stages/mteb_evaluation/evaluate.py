"""Score an embedding on an evaluation task, with mteb itself.

mteb is imported when a task of it is looked up or run, and not before: it takes seconds.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.metrics.example_scores import ExampleScores
from permafrost.stages.metrics.vector_map import VECTOR_MAP
from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.reading import file_digests, read_local
from permafrost.stages.mteb_evaluation.tasks import Category, HubTask, MtebTask, Role
from permafrost.stages.mteb_evaluation.vectors import Embedding
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask

MAIN_SCORE = "main_score"
"""Where mteb repeats the score that is the result."""


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a task before it runs."""

    category: Category
    key: dict[str, Any]
    """What decides its scores, in plain JSON types."""


@dataclass(frozen=True)
class EvaluationResult:
    """The result of one method on one task."""

    metrics: dict[str, Any]
    """metric, test, n_test, category, n_parameters, and what a report expects of any method;
    texts_in_train: role to n_texts, the different texts that the task asked for, and n_in_train, how many of
    them the method was trained on; None for a method that was not trained."""
    scores: dict[str, Any]
    """Everything that mteb measured: split to its subsets; null where a score is not a number."""
    examples: ExampleScores | None
    """What each example adds to the score; None where the kind of task has no such thing."""
    map: pa.Table | None = None
    """See `vector_map`: vectors of labelled texts; None where texts have no classes."""

    def save(self, folder: Path) -> None:
        """Write metrics.json, scores.json and, of tasks that have them, example_scores.parquet and
        map.parquet."""
        if self.examples is not None:
            self.examples.save(folder)
        if self.map is not None:
            pq.write_table(self.map, folder / VECTOR_MAP)
        for name, content in (("metrics", self.metrics), ("scores", self.scores)):
            text = json.dumps(content, indent=2, allow_nan=False) + "\n"
            (folder / f"{name}.json").write_text(text, encoding="utf-8")


def task_facts(config: MtebTask) -> TaskFacts:
    """Look a task up without loading its data: digests of local files, or the commits that mteb pins.

    Raises:
        InputError: mteb has no such task, or a file is not there.
    """
    if isinstance(config, HubTask):
        from permafrost.stages.mteb_evaluation.hub import find_task, hub_facts

        task = find_task(config)
        return TaskFacts(task.metadata.type, {**hub_facts(config, task), **_version()})
    key = config.model_dump(mode="json", exclude={"path"})
    return TaskFacts(config.category, {**key, "files": file_digests(config), **_version()})


def evaluate_task(config: MtebTask, name: str, embedding: Embedding) -> EvaluationResult:
    """Run one task.

    The result is mteb's main score, averaged over the splits and subsets of the task. Embeddings that are
    all equal have the score that mteb gives them: that of a guess for classes, 0 for clusters, the share of
    ones for pairs, and for searches that of an order by chance; correlations of them do not exist.

    Args:
        config: the task.
        name: what it is called.
        embedding: how texts become vectors.

    Raises:
        InputError: the data cannot be had or is wrong, a vector is not finite, the score asked for does not
            exist, or the main score is not a number.
    """
    from permafrost.stages.mteb_evaluation.examples import example_scores
    from permafrost.stages.mteb_evaluation.maps import task_map
    from permafrost.stages.mteb_evaluation.running import run_task

    task, data, key = _loaded(config, name)
    wanted = task.metadata.main_score if key == MAIN_SCORE else key
    asked: dict[Role, set[str]] = {}

    def vectors(texts: Sequence[str], role: Role) -> Vectors:
        asked.setdefault(role, set()).update(map(text_digest, texts))
        return embedding(texts, role)

    with TemporaryDirectory() as kept:
        scores = run_task(task, vectors, embedding.method, embedding.digest, Path(kept))
        value = _mean(scores, key, name)
        examples = example_scores(task, Path(kept), wanted, value)
    if not math.isfinite(value):
        raise InputError(
            f"the {wanted} of {quoted(embedding.method)} on {name} is not a number: all similarities are "
            f"equal, so the method does not tell these texts apart; choose another method or other layers"
        )
    metrics = {
        "metric": wanted,
        "dev": None,
        "test": value,
        "n_dev": 0,
        "n_test": _n_examples(task) if data is None else data.n_examples,
        "majority": None,
        "choice": {},
        "n_parameters": embedding.vectors.n_parameters,
        "category": task.metadata.type,
        "embedding": embedding.digest,
        "texts_in_train": _in_train(asked, embedding.trained_on),
    }
    names = () if data is None else data.class_names
    shown = task_map(task, embedding, asked.get("text", ()), names)
    return EvaluationResult(metrics, _plain(scores), examples, shown)


def _in_train(
    asked: Mapping[Role, Collection[str]], trained_on: frozenset[str] | None
) -> dict[str, dict[str, int]] | None:
    if trained_on is None:
        return None
    return {
        role: {"n_texts": len(texts), "n_in_train": len(trained_on.intersection(texts))}
        for role, texts in asked.items()
    }


def _version() -> dict[str, str]:
    return {"mteb": version("mteb")}


def _loaded(config: MtebTask, name: str) -> "tuple[AbsTask, LocalData | None, str]":
    """The task with its data, that of a local one as it was read, and which score is the result."""
    if isinstance(config, HubTask):
        from permafrost.stages.mteb_evaluation.hub import load_task

        return load_task(config), None, MAIN_SCORE
    from permafrost.stages.mteb_evaluation.build import build_task

    data = read_local(config)
    return build_task(config, name, data), data, config.score


def _mean(scores: Mapping[str, list[dict[str, Any]]], wanted: str, name: str) -> float:
    rows = [row for split in scores.values() for row in split]
    if missing := [row for row in rows if not isinstance(row.get(wanted), int | float)]:
        known = sorted(k for k, v in missing[0].items() if isinstance(v, int | float))
        raise InputError(
            f"the task {name} has no score {quoted(wanted)}; it has {', '.join(known)}"
        )
    return float(sum(row[wanted] for row in rows) / len(rows))


def _n_examples(task: "AbsTask") -> int:
    """Rows, or queries, of the evaluated splits."""
    from permafrost.stages.mteb_evaluation.examples import data_of
    from permafrost.stages.mteb_evaluation.hub import parts_of

    total = 0
    for part in parts_of(task):
        for subset in part.hf_subsets:
            for split in part.eval_splits:
                data = data_of(part, subset, split)
                total += len(data["queries"] if isinstance(data, dict) else data)
    return total


def _plain(value: Any) -> Any:
    """Plain JSON; a float that is not a number becomes null."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, bool | str | int):
        return value
    return float(value) if math.isfinite(value) else None
