"""What a fine-tuning is identified by, so that only the same one takes over its checkpoint."""

import hashlib

import numpy as np
import pyarrow as pa
import torch

from permafrost.stages.finetune.config import FinetuneConfig
from permafrost.stages.finetune.data import FinetuneData
from permafrost.stages.finetune.graph_batches import ItemFeatures, Rows
from permafrost.stages.graphs.graph_corpus import GraphCorpus
from permafrost.storage.keys import digest
from permafrost.storage.readers import FeatureReader

_LOOKED_AT = 16
"""Vectors of an array that are compared, spread evenly."""


def identity_of(config: FinetuneConfig, data: FinetuneData, device: str) -> str:
    """Of config, data and kind of device, on which dropout and rounding depend; not of the code."""
    corpus = data.corpus
    facts = {
        "config": config.model_dump(mode="json"),
        "device": torch.device(device).type,
        "task": corpus.task,
        "label_names": list(corpus.label_names),
        "relations": list(corpus.relations),
        "relation_words": list(corpus.relation_words),
        "texts": _sha256("\n".join(corpus.digests).encode()),
        "labels": _sha256("\n".join(corpus.label_digests).encode()),
        "graphs": _sha256(*(c.tobytes() for c in corpus.graphs.columns())),
        "documents": _sha256(np.array(corpus.documents, np.int64).tobytes()),
        **{
            name: _sha256(_table_bytes(table))
            for name, table in (
                ("items", corpus.items),
                ("cases", corpus.cases),
                ("judgements", corpus.judgements),
            )
        },
        "features": _features(corpus, data.features),
    }
    return digest(facts)


def _features(corpus: GraphCorpus, features: ItemFeatures) -> dict[str, str | list[str] | None]:
    """Digests of what was seen of each array; they do not depend on whether it is held in memory."""
    n_texts = len(corpus.texts)
    rows: tuple[tuple[str, Rows | None, int], ...] = (
        ("labels", features.labels, len(corpus.labels)),
        ("texts", features.texts, n_texts),
        ("descriptions", features.descriptions, corpus.items.num_rows),
        ("node_texts", features.node_texts, n_texts),
    )
    entering = features.entering or ()
    return {
        **{name: None if some is None else _seen(some, n) for name, some, n in rows},
        "entering": [f"{reader.array} {_of_first(reader)}" for reader in entering],
    }


def _seen(rows: Rows, n: int) -> str:
    picked = np.unique(np.linspace(0, n - 1, _LOOKED_AT).astype(np.int64)) if n else np.arange(0)
    return _sha256(str((n, rows.width)).encode(), rows.take(picked).tobytes())


def _of_first(reader: FeatureReader) -> str:
    _, rows = next(reader.subset(np.arange(1)).in_order(1))
    return _sha256(np.asarray(rows.data, np.float32).tobytes())


def _table_bytes(table: pa.Table) -> bytes:
    written = pa.BufferOutputStream()
    whole = table.combine_chunks()
    with pa.ipc.new_stream(written, whole.schema) as stream:
        stream.write_table(whole)
    return written.getvalue().to_pybytes()


def _sha256(*parts: bytes) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()
