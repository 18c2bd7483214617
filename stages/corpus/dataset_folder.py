"""A folder that `datasets` reads: what is in it, and what `datasets` makes of that, kept by its content."""

import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from permafrost.stages.corpus.split_parts import prepared_part
from permafrost.stages.corpus.table_files import file_sha256
from permafrost.storage.errors import ChangedError, InputError
from permafrost.storage.keys import digest
from permafrost.storage.quoting import quoted


def folder_digest(folder: Path) -> str:
    """A digest over names and contents of the files, 32 hex digits.

    Raises:
        InputError: there are none.
    """
    if not (names := sorted(_visible(folder))):
        raise InputError(f"the folder {folder} holds no files; name a folder with a dataset")
    return digest({n.as_posix(): file_sha256(folder / n) for n in names})


def read_split(folder: Path, name: str | None, split: str) -> Any:
    """A split of a folder of data files, or a part of one. What `datasets` makes of the folder is kept by its
    content: by itself it goes by the folder's last name and by times of files, so that an edited one could
    give its old texts. Csv without declared types is read as text.

    Args:
        folder: with data files.
        name: of the configuration; None for the default.
        split: as `datasets` writes it, perhaps with a slice.

    Raises:
        InputError: a data file lies outside the folder.
        ChangedError: the folder changed while it was read.
        ValueError: there is no such split, or a part of one has no rows.
    """
    import datasets

    kept = _prepared(folder, name)
    options = _as_text(datasets.load_dataset_builder(str(folder), name, cache_dir=kept))
    builder = datasets.load_dataset_builder(str(folder), name, cache_dir=kept, **options)
    return prepared_part(builder, split)


def is_untyped(folder: Path, name: str | None) -> bool:
    """Whether a folder of data files is read as text: it has csv or tsv, and its card declares no types."""
    import datasets

    kept = _prepared(folder, name)
    return bool(_as_text(datasets.load_dataset_builder(str(folder), name, cache_dir=kept)))


def _prepared(folder: Path, name: str | None) -> str:
    import datasets
    from datasets import config

    content = folder_digest(folder)
    place = Path(config.HF_DATASETS_CACHE, "permafrost")
    kept = place / digest({"files": content, "config": name, "csv": "as text"})
    if kept.is_dir():
        return str(kept)
    place.mkdir(parents=True, exist_ok=True)
    draft = place / f".draft-{uuid.uuid4().hex}"
    try:
        builder = datasets.load_dataset_builder(str(folder), name, cache_dir=str(draft))
        _require_inside(folder, builder.config.data_files)
        if options := _as_text(builder):
            builder = datasets.load_dataset_builder(
                str(folder), name, cache_dir=str(draft), **options
            )
        builder.download_and_prepare()
        if folder_digest(folder) != content:
            raise ChangedError(
                f"the folder {folder} changed while it was read; leave it alone and run again"
            )
        try:
            draft.rename(kept)
        except OSError:
            if not kept.is_dir():  # or another process was first
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return str(kept)


def _as_text(builder: Any) -> dict[str, Any]:
    """Options with which csv without declared types is read as it stands there; none for other builders.
    `datasets` has one type for a column, so that 01 would be 1, and NA nothing."""
    if builder.name != "csv" or builder.info.features is not None:
        return {}
    import datasets
    import pandas as pd

    first = next(file for files in builder.config.data_files.values() for file in files)
    options: dict[str, Any] = {**builder.config.pd_read_csv_kwargs, "nrows": 0, "chunksize": None}
    header: Any = pd.read_csv(first, **options)
    columns = {str(column): datasets.Value("string") for column in header.columns}
    return {"features": datasets.Features(columns), "na_filter": False}


def _require_inside(folder: Path, data_files: Any) -> None:
    known = {_spelt_out(folder / name) for name in _visible(folder)}
    for file in (file for files in (data_files or {}).values() for file in files):
        if _spelt_out(file) not in known:
            raise InputError(
                f"the dataset in {folder} names the data file {quoted(str(file))}, which is no file of this "
                "folder, so that its key would not hold its content; put the file into the folder"
            )


def _spelt_out(path: str | Path) -> str:
    """From the root, without `..`; links stay."""
    return os.path.abspath(path)  # noqa: PTH100  # Path.absolute keeps `..`


def _visible(
    folder: Path, inside: Path = Path(), above: frozenset[tuple[int, int]] = frozenset()
) -> Iterator[Path]:
    """Files below a folder, relative to it, those behind links too; without hidden ones, as in `datasets`."""
    stat = (folder / inside).stat()
    if (here := (stat.st_dev, stat.st_ino)) in above:
        return  # a link to a folder that holds it
    for path in (folder / inside).iterdir():
        if path.name.startswith("."):
            continue
        if path.is_dir():
            yield from _visible(folder, inside / path.name, above | {here})
        elif path.is_file():
            yield inside / path.name
