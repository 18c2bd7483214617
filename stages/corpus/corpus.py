"""A corpus: unique texts, and the examples that refer to them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from permafrost.stages.corpus.columns import (
    CarvedDev,
    CarvedTest,
    Classification,
    Dev,
    DevAsGiven,
    Task,
    TaskKind,
    Test,
    TestAsGiven,
    Unlabelled,
)
from permafrost.stages.corpus.concatenated import ConcatenatedCorpus, concatenated_rows
from permafrost.stages.corpus.config import CorpusConfig
from permafrost.stages.corpus.development import carve_dev
from permafrost.stages.corpus.dilution import dilution_rows
from permafrost.stages.corpus.files import FilesCorpus, files_rows
from permafrost.stages.corpus.held_out import carve_test
from permafrost.stages.corpus.hub import HubCorpus, hub_rows
from permafrost.stages.corpus.labels import label_values
from permafrost.stages.corpus.negatives import require_some_negatives
from permafrost.stages.corpus.reranking import RerankingCorpus, reranking_rows
from permafrost.stages.corpus.retrieval import RetrievalCorpus, retrieval_rows
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.segments import SegmentsCorpus, segments_rows
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.keys import text_digest
from permafrost.storage.quoting import quoted
from permafrost.storage.texts import Texts

EXAMPLES = pa.schema(
    [
        pa.field("split", pa.string(), nullable=False),
        pa.field("text", pa.int64(), nullable=False),
        pa.field("text_pair", pa.int64()),
        pa.field("label", pa.float64()),
    ]
)
"""`text` and `text_pair` index into the texts; `label` is a class index or a graded score."""

WITH_NEGATIVES = EXAMPLES.append(pa.field("negatives", pa.list_(pa.int64()), nullable=False))
"""Of a corpus whose task names a column of hard negatives: none or more texts for each example."""

_FORMAT = 1


@dataclass(frozen=True)
class Corpus:
    """Texts and examples of one task."""

    texts: Sequence[str]
    """Each text once, in order of first appearance: split by split, first texts before second texts before
    negatives."""
    examples: pa.Table
    """One row per example, in the order of the source; columns of `EXAMPLES` or `WITH_NEGATIVES`."""
    task: TaskKind
    label_names: tuple[str, ...]
    """Names of the classes; empty unless the labels are classes."""
    digests: Sequence[str]
    """SHA-256 of each text, what the feature store knows it by."""

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits, in order of first appearance."""
        return tuple(pc.unique(self.examples.column("split")).to_pylist())

    def split(self, name: str) -> pa.Table:
        """The examples of one split.

        Raises:
            NotFoundError: there is no such split.
        """
        if name not in self.splits:
            raise NotFoundError(
                f"the corpus has no split {quoted(name)}; its splits are {', '.join(self.splits)}"
            )
        return self.examples.filter(pc.equal(self.examples.column("split"), name))

    def save(self, folder: Path) -> None:
        """Write texts.parquet, examples.parquet and corpus.json."""
        columns = {
            "digest": pa.array(self.digests, pa.string()),
            "text": pa.array(self.texts, pa.large_string()),
        }
        pq.write_table(pa.table(columns), folder / "texts.parquet", compression="zstd")
        pq.write_table(self.examples, folder / "examples.parquet", compression="zstd")
        head = {"format": _FORMAT, "task": self.task, "label_names": list(self.label_names)}
        (folder / "corpus.json").write_text(json.dumps(head, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> "Corpus":
        """Read what `save` wrote.

        Raises:
            CorruptDataError: a file is missing or broken, or of another format.
        """
        try:
            head = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
            texts = pq.read_table(folder / "texts.parquet")
            examples = pq.read_table(folder / "examples.parquet")
            has_known_columns = any(map(examples.schema.equals, (EXAMPLES, WITH_NEGATIVES)))
            if head["format"] != _FORMAT or not has_known_columns:
                raise ValueError(f"format {head['format']} with columns {examples.column_names}")
            return cls(
                texts=Texts(texts.column("text")),
                examples=examples,
                task=head["task"],
                label_names=tuple(head["label_names"]),
                digests=Texts(texts.column("digest")),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(
                f"{folder} holds no corpus of format {_FORMAT}: {error}; delete the artifact and "
                "run again"
            ) from error


def build_corpus(config: CorpusConfig) -> Corpus:
    """Read or generate, check, and number the texts.

    Raises:
        InputError: whatever is wrong with the data: what, in which row of which file, what to do.
    """
    rows, task, dev, test = _read(config)
    require_some_negatives([s.negatives for s in rows if s.negatives is not None])
    labels, label_names = label_values(rows, task)
    texts, examples = _number_texts(rows, labels)
    digests = texts.map(text_digest)
    if isinstance(test, CarvedTest):
        examples = carve_test(examples, digests, test, task.kind)
    if isinstance(dev, CarvedDev):
        examples = carve_dev(examples, digests, dev, label_names)
    schema = WITH_NEGATIVES if "negatives" in examples.column_names else EXAMPLES
    return Corpus(texts, examples.cast(schema), task.kind, label_names, digests)


def _read(config: CorpusConfig) -> tuple[list[SplitRows], Task, Dev, Test]:
    if isinstance(config, FilesCorpus):
        return files_rows(config), config.task, config.dev, config.test
    if isinstance(config, HubCorpus):
        return hub_rows(config), config.task, config.dev, config.test
    if isinstance(config, RetrievalCorpus):
        return retrieval_rows(config), config.task, config.dev, config.test
    if isinstance(config, RerankingCorpus):
        return reranking_rows(config), config.task, config.dev, config.test
    if isinstance(config, SegmentsCorpus):
        return segments_rows(config), Unlabelled(), DevAsGiven(), TestAsGiven()
    if isinstance(config, ConcatenatedCorpus):
        return concatenated_rows(config), config.source.task, DevAsGiven(), TestAsGiven()
    return dilution_rows(config), Classification(), DevAsGiven(), TestAsGiven()


def _number_texts(
    splits: Sequence[SplitRows], labels: Sequence[NDArray[np.float64] | None]
) -> tuple[Texts, pa.Table]:
    columns = [
        c
        for s in splits
        for c in (s.text, s.text_pair, None if s.negatives is None else s.negatives.texts)
        if c is not None
    ]
    stacked = pa.chunked_array([chunk for c in columns for chunk in c.chunks], pa.large_string())
    encoded = stacked.combine_chunks().dictionary_encode()
    numbers = encoded.indices.cast(pa.int64())
    tables: list[pa.Table] = []
    start = 0
    for split, label in zip(splits, labels, strict=True):
        n_rows = split.text.length()
        text = numbers.slice(start, n_rows)
        start += n_rows
        pair = pa.nulls(n_rows, pa.int64())
        if split.text_pair is not None:
            pair = numbers.slice(start, n_rows)
            start += n_rows
        found = {
            "split": pa.array([split.split] * n_rows, pa.string()),
            "text": text,
            "text_pair": pair,
            "label": pa.nulls(n_rows, pa.float64()) if label is None else pa.array(label),
        }
        if split.negatives is not None:
            theirs = numbers.slice(start, len(split.negatives.rows))
            start += len(theirs)
            found["negatives"] = split.negatives.numbered(theirs, (text, pair), split.where)
        tables.append(pa.table(found))
    return Texts(encoded.dictionary), pa.concat_tables(tables).combine_chunks()
