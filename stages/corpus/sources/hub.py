"""Corpora from the Hugging Face hub, or from a local folder that `datasets` reads."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field

from permafrost.stages.corpus.columns import TaskColumns
from permafrost.stages.corpus.csv_labels import typed, with_written
from permafrost.stages.corpus.dataset_folder import folder_digest, is_untyped, read_split
from permafrost.stages.corpus.label_types import Labelled, typed_alike
from permafrost.stages.corpus.names import require_columns
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.source import ColumnsSource, test_part
from permafrost.stages.corpus.split_parts import parts_of, prepared_part
from permafrost.storage.errors import InputError
from permafrost.storage.paths import checked_path
from permafrost.storage.quoting import quoted

_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubCorpus(ColumnsSource):
    """A dataset on the hub, or a local folder of data files or from `Dataset.save_to_disk`.

    ```yaml
    kind: hub
    path: nyu-mll/glue
    config: sst2
    splits: {train: train, test: validation}
    task: {kind: classification, text: sentence}
    dev: {kind: from_train, fraction: 0.05}
    ```
    """

    kind: Literal["hub"] = "hub"
    path: str
    """A folder or, if there is none of that name, a hub id."""
    config: str = "default"
    """Configuration of the dataset (its subset); a folder from `Dataset.save_to_disk` has none."""
    revision: str = "main"
    """Branch, tag or commit; the key of the corpus holds the commit. Ignored for folders."""
    splits: dict[str, str] = Field(min_length=1)
    """Our split to the dataset's split; slices such as `train[:20000]` are allowed."""

    def split_names(self) -> list[str]:
        """Our names of the splits."""
        return list(self.splits)

    def facts(self) -> dict[str, Any]:
        """The commit (or the digest of the local files) instead of names whose content can change."""
        source = source_identity(self.path, self.revision)
        _require_no_config_of_saved(self.path, self.config)
        return {
            "kind": self.kind,
            "source": source,
            "config": self.config,
            "splits": dict(self.splits),
            "task": self.task.model_dump(),
            "dev": self.dev.model_dump(),
            "test": self.test.model_dump(),
            **self.sample_facts(),
        }

    def tested_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """Dataset, configuration and split of test, or of train where test is taken from that."""
        source = facts["source"]
        name = source.get("path") or source["files"]
        return test_part(
            {
                s: f"{name} {self.config} {theirs.partition('[')[0]}"
                for s, theirs in self.splits.items()
            }
        )

    def rows(self) -> list[SplitRows]:
        """Read and check every split, in the order given."""
        revision = _revision_to_read(self.path, self.revision)
        tasks: list[TaskColumns] = []
        tables: list[pa.Table] = []
        declared: list[tuple[str, ...] | None] = []
        places = [f"split {quoted(theirs)} of {self.path}" for theirs in self.splits.values()]
        for theirs, where in zip(self.splits.values(), places, strict=True):
            loaded = open_split(self.path, self.config, revision, theirs)
            task = self.task.named(loaded.column_names, where)
            wanted = (*task.text_columns, *task.label_columns, *task.negative_columns)
            table, names = select_columns(loaded, wanted, where)
            tasks.append(task)
            tables.append(table)
            declared.append(next((names[c] for c in task.label_columns if c in names), None))
        if tasks[0].label_columns and _is_untyped(self.path, self.config):
            tables = _with_typed_labels(tables, tasks)
        return [
            self.sampled(task.rows(table, split, where, classes))
            for task, table, split, where, classes in zip(
                tasks, tables, self.splits, places, declared, strict=True
            )
        ]


def _with_typed_labels(read: Sequence[pa.Table], tasks: Sequence[TaskColumns]) -> list[pa.Table]:
    """Tables that were read as text, with labels as those of csv files, one for each split."""
    tables = [typed(table, task.label_columns) for table, task in zip(read, tasks, strict=True)]
    labelled = [
        Labelled(table, name, partial(with_written, table, as_read, name))
        for table, as_read, task in zip(tables, read, tasks, strict=True)
        for name in task.class_columns
    ]
    return [one.table for one in typed_alike(labelled)] if labelled else tables


def source_identity(path: str, revision: str) -> dict[str, str]:
    """What the name refers to now: `{"path": ..., "commit": ...}` or `{"files": ...}`.

    Raises:
        InputError: it is neither a folder nor a dataset that can be resolved.
    """
    checked_path(path, "the dataset")
    if Path(path).is_dir():
        return {"files": folder_digest(Path(path))}
    return {"path": path, "commit": resolve_commit(path, revision)}


def _revision_to_read(path: str, revision: str) -> str:
    checked_path(path, "the dataset")
    return revision if Path(path).is_dir() else resolve_commit(path, revision)


def resolve_commit(path: str, revision: str) -> str:
    """The commit of a branch or tag, 40 hex digits; a commit is returned without asking the hub.

    Raises:
        InputError: there is no such dataset or revision, or the hub cannot be reached.
    """
    if _COMMIT.fullmatch(revision):
        return revision
    # Imported here: a run on files should not pay for the hub client.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        commit = HfApi().dataset_info(path, revision=revision).sha
    except (HFValidationError, HfHubHTTPError) as error:
        raise InputError(
            f"{quoted(path)} at {quoted(revision)} is neither a folder here nor a dataset of the hub that "
            f"can be read: {error}"
        ) from error
    except Exception as error:
        # Offline mode, no route, no DNS: the exceptions for these differ between versions of the hub client,
        # which has changed its transport library.
        raise InputError(
            f"the hub cannot be asked which commit {quoted(revision)} of {quoted(path)} is ({error}); give "
            "the 40-digit commit as revision, or a local folder as path"
        ) from error
    assert commit is not None, "the hub returned a dataset without a commit"
    return commit


def open_split(path: str, config: str, revision: str, split: str) -> Any:
    """One split, as `datasets` loads it.

    Raises:
        InputError: `datasets` cannot load it, or it has no such split.
    """
    import datasets
    from datasets.exceptions import DatasetsError

    # Bars of another library would tear up the progress display of the run.
    datasets.disable_progress_bars()
    try:
        return _load(path, config, revision, split)
    except InputError:
        raise
    except (DatasetsError, ValueError, OSError, RuntimeError, pa.ArrowException) as error:
        cause = f": {error.__cause__}" if error.__cause__ is not None else ""
        raise InputError(
            f"split {quoted(split)} of the dataset {quoted(path)} (config {quoted(config)}, revision "
            f"{quoted(revision)}) cannot be loaded: {error}{cause}"
        ) from error


def select_columns(
    loaded: Any, columns: Sequence[str], where: str
) -> tuple[pa.Table, dict[str, tuple[str, ...]]]:
    """Some columns of a split, and the names of declared classes by column.

    Raises:
        InputError: it has no such column.
    """
    import datasets

    require_columns(loaded.column_names, columns, where)
    classes = {
        name: tuple(feature.names)
        for name, feature in loaded.features.items()
        if isinstance(feature, datasets.ClassLabel)
    }
    return loaded.select_columns(list(columns)).with_format("arrow")[:], classes


def _load(path: str, config: str, revision: str, split: str) -> Any:
    import datasets

    _require_no_config_of_saved(path, config)
    folder, name = Path(path), None if config == "default" else config
    if _is_saved(folder):
        return _part_of_saved(folder, split)
    if folder.is_dir():
        return read_split(folder, name, split)
    return prepared_part(datasets.load_dataset_builder(path, name, revision=revision), split)


def _is_saved(folder: Path) -> bool:
    """Whether it is from `save_to_disk` of a dataset, or of several as splits."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _is_untyped(path: str, config: str) -> bool:
    folder = Path(path)
    if not folder.is_dir() or _is_saved(folder):
        return False
    return is_untyped(folder, None if config == "default" else config)


def _require_no_config_of_saved(path: str, config: str) -> None:
    if config != "default" and _is_saved(Path(path)):
        raise InputError(
            f"config is {quoted(config)}, but {path} is a folder from save_to_disk, which holds one "
            "configuration; leave config out, or name the folder to which the other one was saved"
        )


def _part_of_saved(folder: Path, split: str) -> Any:
    import datasets

    saved = _read_back(folder)
    if isinstance(saved, datasets.Dataset):
        saved = datasets.DatasetDict({str(saved.split or "train"): saved})
    if split in saved:
        return saved[split]
    n_rows = {str(name): len(one) for name, one in saved.items()}
    kept = [saved[name].select(rows) for name, rows in parts_of(split, n_rows)]
    return kept[0] if len(kept) == 1 else datasets.concatenate_datasets(kept)


def _read_back(folder: Path) -> Any:
    """What `save_to_disk` wrote."""
    import datasets

    try:
        return datasets.load_from_disk(str(folder))
    except (LookupError, TypeError, AttributeError) as error:
        # Without rows there is no file that holds the columns.
        raise ValueError(
            "what save_to_disk wrote cannot be read back, as where a split has no rows or a JSON file was "
            f"edited ({type(error).__name__}: {error}); save it again, without empty splits"
        ) from None
