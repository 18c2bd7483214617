"""Score an embedding on an evaluation task, with mteb itself.

mteb is imported only when one of its tasks is looked up or run, as the import takes seconds.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.metrics.example_scores import ExampleScores
from permafrost.stages.metrics.vector_map import VECTOR_MAP
from permafrost.stages.mteb_evaluation.task import MAIN_SCORE, MtebTask, Role, TaskCategory
from permafrost.stages.mteb_evaluation.vectors import Embedding
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from mteb.abstasks import AbsTask


@dataclass(frozen=True)
class TaskFacts:
    """What is known about a task before it runs."""

    category: TaskCategory
    key: dict[str, Any]
    """Everything that determines its scores, in plain JSON types."""
    scored_on: frozenset[str]
    """Names of the parts of data that it is scored on; see `EvaluationTask.scored_on`."""


@dataclass(frozen=True)
class EvaluationResult:
    """The result of one method on one task."""

    metrics: dict[str, Any]
    """metric, test, n_test, category, n_parameters, choice, and what a report expects of any method;
    texts_in_train: for each role n_texts, the number of distinct texts of the task, and n_in_train, how many
    of them the method or the backbone that it reads was trained on, or chosen on (epochs, settings, layers);
    None where nothing was trained or chosen."""
    scores: dict[str, Any]
    """All of mteb's scores, by split and subset; null if a score is not a number."""
    examples: ExampleScores | None
    """The contribution of each example to the score; None if the kind of task has none."""
    map: pa.Table | None = None
    """See `vector_map`: vectors of labelled texts; None if texts have no classes."""

    def save(self, folder: Path) -> None:
        """Write metrics.json, scores.json and, if there are any, example_scores.parquet and map.parquet."""
        if self.examples is not None:
            self.examples.save(folder)
        if self.map is not None:
            pq.write_table(self.map, folder / VECTOR_MAP)
        for name, content in (("metrics", self.metrics), ("scores", self.scores)):
            text = json.dumps(content, indent=2, allow_nan=False) + "\n"
            (folder / f"{name}.json").write_text(text, encoding="utf-8")


def task_facts(config: MtebTask) -> TaskFacts:
    """Look up a task without loading its data: digests of local files, or the commits that mteb pins.

    Raises:
        InputError: mteb has no such task, or a file is missing.
    """
    facts = config.facts()
    return TaskFacts(config.category, {**facts, "mteb": _mteb_version()}, config.scored_on(facts))


@cache
def _mteb_version() -> str:
    """Looked up once, which takes milliseconds: a plan asks for every method on every task."""
    return version("mteb")


def main_score(config: MtebTask, name: str, embedding: Embedding) -> float | None:
    """mteb's main score alone, as `evaluate_task` has it; None where it is not a number.

    Raises:
        InputError: as there.
    """
    from permafrost.stages.mteb_evaluation.running import run_task

    loaded = config.load(name)
    with TemporaryDirectory() as kept:
        scores = run_task(loaded.task, embedding, embedding.method, embedding.digest, Path(kept))
    value = _mean(scores, loaded.score, name)
    return value if math.isfinite(value) else None


def evaluate_task(config: MtebTask, name: str, embedding: Embedding) -> EvaluationResult:
    """Run one task.

    The result is mteb's main score, averaged over the splits and subsets of the task. If all embeddings are
    equal, the score is what mteb gives them: chance level for classes, 0 for clusters, the share of ones for
    pairs, a random ranking's for retrieval; correlations are undefined.

    Args:
        config: the task.
        name: its name in the experiment.
        embedding: how texts become vectors.

    Raises:
        InputError: the data cannot be loaded or is wrong, a vector is not finite, the requested score does
            not exist, or the main score is not a number.
    """
    from permafrost.stages.mteb_evaluation.examples import example_scores
    from permafrost.stages.mteb_evaluation.maps import task_map
    from permafrost.stages.mteb_evaluation.running import run_task

    loaded = config.load(name)
    task, key = loaded.task, loaded.score
    metric = task.metadata.main_score if key == MAIN_SCORE else key
    embedded: dict[Role, set[str]] = {}

    def vectors(texts: Sequence[str], role: Role) -> Vectors:
        embedded.setdefault(role, set()).update(map(text_digest, texts))
        return embedding(texts, role)

    with TemporaryDirectory() as kept:
        scores = run_task(task, vectors, embedding.method, embedding.digest, Path(kept))
        value = _mean(scores, key, name)
        examples = example_scores(task, Path(kept), metric, value)
    if not math.isfinite(value):
        raise _no_number(metric, embedding.method, name, scores)
    n_test = loaded.n_examples if examples is None else len(examples)
    metrics = {
        "metric": metric,
        "dev": None,
        "test": value,
        "n_dev": 0,
        "n_test": _n_examples(task) if n_test is None else n_test,
        "majority": None,
        "choice": dict(embedding.choice),
        "n_parameters": embedding.vectors.n_parameters,
        "category": task.metadata.type,
        "embedding": embedding.digest,
        "texts_in_train": _in_train(embedded, embedding.trained_on),
    }
    vector_map = task_map(task, embedding, embedded.get("text", ()), loaded.class_names)
    return EvaluationResult(metrics, _plain(scores), examples, vector_map)


def _in_train(
    embedded: Mapping[Role, Collection[str]], trained_on: frozenset[str] | None
) -> dict[str, dict[str, int]] | None:
    if trained_on is None:
        return None
    return {
        role: {"n_texts": len(texts), "n_in_train": len(trained_on.intersection(texts))}
        for role, texts in embedded.items()
    }


def _mean(scores: Mapping[str, list[dict[str, Any]]], metric: str, name: str) -> float:
    rows = [row for split in scores.values() for row in split]
    if missing := [row for row in rows if not isinstance(row.get(metric), int | float)]:
        available = sorted(k for k, v in missing[0].items() if isinstance(v, int | float))
        raise InputError(
            f"the task {name} has no score {quoted(metric)}; it has {', '.join(available)}"
        )
    return float(sum(row[metric] for row in rows) / len(rows))


def _no_number(
    metric: str, method: str, name: str, scores: Mapping[str, list[dict[str, Any]]]
) -> InputError:
    said = f"the {metric} of {quoted(method)} on {name} is not a number: "
    if metric.endswith(("spearman", "pearson")):
        return InputError(
            f"{said}all similarities are equal, so the method does not tell these texts apart; choose "
            "another method or other layers"
        )
    rows = [row for split in scores.values() for row in split]
    numbers = [
        key
        for key in rows[0]
        if all(isinstance(v := row.get(key), int | float) and math.isfinite(v) for row in rows)
    ]
    return InputError(
        f"{said}mteb gives none for this score on these texts. Numbers are: {', '.join(numbers)}"
    )


def _n_examples(task: "AbsTask") -> int:
    """Number of rows, or queries, in the evaluated splits; of clustering those that mteb draws."""
    from permafrost.stages.mteb_evaluation.examples import data_of, n_drawn, rows_of
    from permafrost.stages.mteb_evaluation.hub import parts_of

    total = 0
    for part in parts_of(task):
        for subset in part.hf_subsets:
            for split in part.eval_splits:
                data = data_of(part, subset, split)
                n = len(data["queries"] if isinstance(data, dict) else rows_of(part, data))
                total += n_drawn(part, n)
    return total


def _plain(value: Any) -> Any:
    """Plain JSON types; a float that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if value is None or isinstance(value, bool | str | int):
        return value
    return float(value) if math.isfinite(value) else None
