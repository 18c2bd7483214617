"""Local data as instances of mteb's own task classes."""

from typing import Any

from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTask
from mteb.abstasks.task_metadata import TaskMetadata

from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.task import LocalTask

_SPLIT = "test"


class _Rows(Dataset):
    """A dataset that returns columns as lists: mteb iterates over labels a hundred times, which with a column
    of `datasets` takes longer than the classifier."""

    def __getitem__(self, key: Any) -> Any:
        item = super().__getitem__(key)
        return list(item) if isinstance(key, str) else item


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
    base = config.mteb_class()
    # mteb reads the metadata of the class.
    fixed = {
        "metadata": metadata,
        "prediction_file_name": "predictions.json",
    }  # any name of a task will do
    made = type(f"Local{base.__name__}", (base,), {**fixed, **config.settings()})
    task: Any = made()
    task.dataset = _dataset(data)
    task.data_loaded = True
    return task


def _dataset(data: LocalData) -> Any:
    tables: Any = {name: _Rows.from_dict(columns) for name, columns in data.tables.items()}
    if "queries" not in tables:
        return DatasetDict(tables)
    split = {**tables, "relevant_docs": data.relevant, "top_ranked": data.candidates}
    return {"default": {_SPLIT: split}}
