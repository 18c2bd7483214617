"""Vectors in a file."""

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from permafrost.stages.embed.aggregate import Vectors
from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import draft_path, remove_dead_drafts_of
from permafrost.storage.errors import InputError
from permafrost.storage.keys import canonical_json
from permafrost.storage.paths import checked_path, require_writable


def require_place(path: Path, what: str = "the embeddings") -> None:
    """Check, before anything is computed, that a file can be written to `path`; makes no folder.

    Args:
        path: of the file.
        what: is to be written, for messages.

    Raises:
        InputError: a folder has this name, or its own folder cannot be made or written to.
    """
    checked_path(path, "the output")
    if path.is_dir():
        raise InputError(
            f"{what} are to be written to {path}, which is a folder; name a file, e.g. "
            f"{path / what.split()[-1]}.parquet"
        )
    checked_path(draft_path(path), "the draft of the output")
    existing = next(p for p in path.absolute().parents if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        why = "may not be written to" if existing.is_dir() else "is not a folder"
        raise InputError(
            f"{what} cannot be written to {path}: {existing} {why}; choose another file"
        )
    if path.exists() and not path.is_file():
        raise InputError(
            f"{what} are to be written to {path}, which is a device or a pipe; name a file"
        )
    require_writable(path.parent, what)


@contextmanager
def whole_file(path: Path) -> Generator[Path]:
    """A draft beside `path`, renamed to it when the block succeeds and removed otherwise."""
    with disk_errors_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_dead_drafts_of(path)
        draft = draft_path(path)
        try:
            yield draft
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def require_other_file(output: Path, read: Path) -> None:
    """Check that what is read is not what is written.

    Raises:
        InputError: the two are one file.
    """
    if output.exists() and read.exists() and output.samefile(read):
        raise InputError(
            f"the output {output} is the file that texts are read from, whose other columns would be gone; "
            "name another file"
        )


def write_embeddings(
    path: Path,
    texts: Sequence[str],
    vectors: Vectors,
    facts: Mapping[str, Any],
    ids: pa.ChunkedArray | None = None,
) -> None:
    """Write one row per text, in order: `id` if given, `text`, `embedding` (fixed-size list of float32).

    `facts` is everything that decides the vectors; it goes into the file's metadata under the key
    `permafrost` as JSON. The file appears whole or not at all.
    """
    values = pa.array(vectors.reshape(-1), pa.float32())
    embedding = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    # Of large_string, as all texts together may have more than 2 GiB.
    columns = {"text": pa.array(texts, pa.large_string()), "embedding": embedding}
    table = pa.table(columns if ids is None else {"id": ids, **columns})
    table = table.replace_schema_metadata({b"permafrost": canonical_json(facts)})
    with whole_file(path) as draft:
        pq.write_table(table, draft)
