"""A corpus: unique texts, and the examples that refer to them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from permafrost.stages.corpus.columns import TaskKind
from permafrost.storage.errors import CorruptDataError, NotFoundError
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
"""Schema if the task names a column of hard negatives: any number of texts per example."""

_FORMAT = 1
_AT_A_TIME = 1 << 16


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
    """SHA-256 of each text, which identifies it in feature stores."""

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

    def row_of(self, text: int, read_from: Mapping[str, str]) -> str | None:
        """The first row that has a text, such as "row 3 of train"; None if that is not known.

        Args:
            text: its number among the texts.
            read_from: by split, the one whose rows it has, all of them or together with other splits.
        """
        names = [name for name in self.examples.column_names if name not in ("split", "label")]
        found = [i for name in names if (i := _first_with(self.examples.column(name), text)) >= 0]
        if not found:
            return None
        before = [read_from.get(name) for name in self.examples.column("split").to_pylist()]
        split = before[row := min(found)]
        return None if split is None else f"row {before[: row + 1].count(split)} of {split}"

    def counts(self) -> dict[str, int]:
        """What it consists of, for a summary."""
        own = {"n_texts": len(self.texts), "n_examples": self.examples.num_rows}
        return own | self.graph_counts()

    def graph_counts(self) -> dict[str, int]:
        """What graphs beside the texts consist of; empty without any."""
        return {}

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
        """Load what `save` wrote.

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


def _first_with(column: pa.ChunkedArray, number: int) -> int:
    """The first row that has a number, itself or in a list; -1 if none has it."""
    if not pa.types.is_list(column.type):
        return pc.index(column, number).as_py()
    at = pc.index(pc.list_flatten(column), number).as_py()
    return at if at < 0 else pc.list_parent_indices(column)[at].as_py()


def stored_classes(folder: Path) -> list[str]:
    """The names of the classes of a saved corpus; empty for labels that are none.

    Raises:
        CorruptDataError: the file is broken.
    """
    try:
        head = json.loads((folder / "corpus.json").read_text(encoding="utf-8"))
        return [str(name) for name in head["label_names"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise CorruptDataError(
            f"{folder} does not say what the classes of a corpus are: {error}; delete the artifact and run "
            "again"
        ) from error


def stored_digests(folder: Path) -> Iterator[Texts]:
    """The digests of a saved corpus' texts, in order and in blocks: all that it takes to see whether their
    features are stored.

    Raises:
        CorruptDataError: the file is broken.
    """
    try:
        with pq.ParquetFile(folder / "texts.parquet", pre_buffer=False) as file:
            for batch in file.iter_batches(_AT_A_TIME, columns=["digest"], use_threads=False):
                yield Texts(batch.column("digest"))
    except (OSError, ValueError, LookupError) as error:
        raise CorruptDataError(
            f"{folder} holds no texts of a corpus: {error}; delete the artifact and run again"
        ) from error
