"""Sentence embeddings from cached features: parameter-free poolings, or a trained head."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from stages.fit import LoadedHead
from storage.durable import disk_errors_named, draft_path
from storage.keys import canonical_json
from storage.progress import Progress
from storage.ragged import Ragged
from storage.readers import FeatureReader

Method = Literal["first", "last", "mean", "max"]

BATCH_TEXTS = 256


class EmbedConfig(BaseModel):
    """How cached rows become one vector per text."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    method: Method = "mean"
    arrays: tuple[str, ...] = Field(min_length=1)
    """Stored arrays that are pooled; several are averaged, as in hidden-state pooling."""


_POOL: dict[Method, Callable[[Ragged], NDArray[np.floating]]] = {
    "first": lambda rows: rows.data[rows.offsets[:-1]],
    "last": lambda rows: rows.data[rows.offsets[1:] - 1],
    "mean": lambda rows: np.add.reduceat(rows.data, rows.offsets[:-1]) / rows.lengths[:, None],
    "max": lambda rows: np.maximum.reduceat(rows.data, rows.offsets[:-1]),
}


def pool(
    config: EmbedConfig, readers: Sequence[FeatureReader], progress: Progress
) -> NDArray[np.float32]:
    """Pool each array over the span's tokens and average over arrays.

    Args:
        config: method.
        readers: one per array, over the same texts.
        progress: told the texts done.

    Returns:
        `[n_texts, width]` float32.
    """
    out = np.zeros((readers[0].n_texts, readers[0].width), dtype=np.float32)
    progress.start("embed", readers[0].n_texts * len(readers), "texts")
    try:
        for reader in readers:
            for texts, rows in reader.in_order(BATCH_TEXTS):
                out[texts] += _POOL[config.method](rows) / len(readers)
                progress.advance(len(texts))
    finally:
        progress.finish()
    return out


def embed_with_head(
    head: LoadedHead, reader: FeatureReader, progress: Progress
) -> NDArray[np.float32]:
    """Pooled vectors of a trained head for every text `[n_texts, d_out]` float32, before its classifier."""
    parts: list[NDArray[np.float32]] = []
    progress.start("embed", reader.n_texts, "texts")
    try:
        with torch.inference_mode():
            for texts, rows in reader.in_order(BATCH_TEXTS):
                tokens, offsets = torch.from_numpy(rows.data), torch.from_numpy(rows.offsets)
                parts.append(head.embed(tokens, offsets).numpy())
                progress.advance(len(texts))
    finally:
        progress.finish()
    return np.concatenate(parts)


def write_embeddings(
    path: Path, texts: Sequence[str], vectors: NDArray[np.float32], recipe: Mapping[str, Any]
) -> None:
    """Write one row per text, in order: `text` and `embedding` (fixed-size list of float32).

    `recipe` is everything that decides the vectors; it goes into the file's metadata under the key
    `permafrost` as JSON. The file appears whole or not at all.
    """
    values = pa.array(vectors.reshape(-1), pa.float32())
    embedding = pa.FixedSizeListArray.from_arrays(values, vectors.shape[1])
    table = pa.table({"text": pa.array(texts, pa.string()), "embedding": embedding})
    table = table.replace_schema_metadata({b"permafrost": canonical_json(recipe)})
    with disk_errors_named(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = draft_path(path)
        try:
            pq.write_table(table, draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)
