"""Local data as instances of mteb's own task classes."""

from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks import (
    AbsTask,
    AbsTaskClassification,
    AbsTaskClustering,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
    AbsTaskSummarization,
)
from mteb.abstasks.task_metadata import TaskMetadata

from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.tasks import (
    ClassificationTask,
    ClusteringTask,
    LocalTask,
    RetrievalTask,
)

_SPLIT = "test"


class _Rows(Dataset):
    """A dataset that returns columns as lists: mteb iterates over labels a hundred times, which with a column
    of `datasets` takes longer than the classifier."""

    def __getitem__(self, key: Any) -> Any:
        item = super().__getitem__(key)
        return list(item) if isinstance(key, str) else item


_CLASSES: dict[str, type[AbsTask]] = {
    "sts": AbsTaskSTS,
    "classification": AbsTaskClassification,
    "pair_classification": AbsTaskPairClassification,
    "clustering": AbsTaskClustering,
    "retrieval": AbsTaskRetrieval,
    "reranking": AbsTaskRetrieval,
    "summarization": AbsTaskSummarization,
}


def build_task(config: LocalTask, name: str, data: LocalData) -> AbsTask:
    """A task with `data` already loaded. Everything that the config does not set is mteb's default."""
    metadata = TaskMetadata(
        name=name,
        description=f"{config.type} on local files",
        type=config.category,  # pyright: ignore[reportArgumentType]
        dataset={"path": "local", "revision": "local"},
        eval_splits=[_SPLIT],
        eval_langs=["eng-Latn"],  # mteb requires one; no score depends on it
        main_score=config.default_score,
    )
    base = _CLASSES[config.type]
    # mteb reads the metadata of the class.
    fixed = {
        "metadata": metadata,
        "prediction_file_name": "predictions.json",
    }  # any name of a task will do
    made = type(f"Local{base.__name__}", (base,), {**fixed, **_settings(config)})
    task: Any = made()
    task.dataset = _dataset(data)
    task.data_loaded = True
    return task


def _settings(config: LocalTask) -> dict[str, Any]:
    if isinstance(config, ClassificationTask):
        return {
            "samples_per_label": config.samples_per_label,
            "n_experiments": config.n_experiments,
        }
    if isinstance(config, ClusteringTask):
        # By default mteb embeds 4 % of the texts.
        return {
            "max_fraction_of_documents_to_embed": None,
            "max_document_to_embed": config.max_documents,
        }
    if isinstance(config, RetrievalTask):
        return {"ignore_identical_ids": config.identical_ids == "ignore"}
    # Grades of pairs and summaries are not rescaled, as no correlation depends on their scale.
    return {"min_score": 0, "max_score": 1}


def _dataset(data: LocalData) -> Any:
    tables: Any = {name: _Rows.from_dict(columns) for name, columns in data.tables.items()}
    if "queries" not in tables:
        return DatasetDict(tables)
    split = {**tables, "relevant_docs": data.relevant, "top_ranked": data.candidates}
    return {"default": {_SPLIT: split}}
