"""The base classes of corpus sources, and how a corpus is built from one."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import model_validator

from permafrost.stages.corpus.columns import Task, TaskKind
from permafrost.stages.corpus.corpus import EXAMPLES, WITH_NEGATIVES, Corpus
from permafrost.stages.corpus.given_rows import checked_splits
from permafrost.stages.corpus.row_sample import RowSample
from permafrost.stages.corpus.rows import SplitRows, require_some_negatives
from permafrost.stages.corpus.splits import Dev, DevAsGiven, Test, TestAsGiven, check_splits
from permafrost.stages.kinds import Category, Kind
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import Progress
from permafrost.storage.quoting import quoted
from permafrost.storage.texts import Texts


class TaskSource(Kind):
    """Where the corpus of a task comes from: files, a dataset, or a generator."""

    surface_at_chance: ClassVar[bool] = False
    """Whether neither the words of a text nor its length say anything about its label, by construction; nor
    its graph, where it has one, without the text."""
    has_graphs: ClassVar[bool] = False
    """Whether texts come with graphs."""

    @property
    def known_ahead(self) -> bool:
        """Whether plans and checks may build it in memory; False for what takes minutes, or a model."""
        return True

    @property
    def runs_a_model(self) -> bool:
        """Whether building it takes a model, which wants the backbone's device."""
        return False

    @property
    @abstractmethod
    def task_kind(self) -> TaskKind:
        """The kind of task of the corpus, known before it is read."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What enters the key of a corpus: names of files and branches are replaced by digests and commits.

        Reads bytes but parses nothing. Plain JSON types.

        Raises:
            InputError: a file or dataset does not exist, cannot be read or cannot be resolved.
        """

    def tested_on(self, facts: Mapping[str, Any]) -> frozenset[str]:
        """Names of the parts of data that its test examples are from, as evaluation tasks name those that
        they are scored on; empty where none could name it.

        Args:
            facts: its own.
        """
        return frozenset()

    @abstractmethod
    def build(self) -> Corpus:
        """Read or generate the texts, check them and number them.

        Raises:
            InputError: the data are faulty; the message says what is wrong, in which row of which file, and
                what to do.
        """

    def read_from(self) -> dict[str, str]:
        """By split, the one of the source whose rows it has, where these are rows of a user's."""
        return {}

    def build_showing(self, progress: Progress, device: str = "auto") -> Corpus:
        """As `build`; a source that takes long tells `progress` how far it is, and one that runs a model does
        so on `device`."""
        return self.build()


class CorpusSource(TaskSource):
    """A source of texts with their labels, split by split."""

    @abstractmethod
    def columns(self) -> Task:
        """The corpus' task and the names of its columns, known before it is read."""

    def held_out(self) -> tuple[Dev, Test]:
        """Where dev and test come from."""
        return DevAsGiven(), TestAsGiven()

    @abstractmethod
    def rows(self) -> list[SplitRows]:
        """Read or generate every split, in order.

        Raises:
            InputError: the data are faulty; the message says what is wrong, in which row of which file, and
                what to do.
        """

    def read_rows(self) -> list[SplitRows]:
        """`rows`, checked.

        Raises:
            InputError: see `rows`; or they are not as `SplitRows` says, as a plug-in's may not be.
        """
        return checked_splits(self.rows(), self.columns(), f"{type(self).__name__}.rows")

    @property
    def task_kind(self) -> TaskKind:
        """The kind of task of the corpus."""
        return self.columns().kind

    def build(self) -> Corpus:
        """Read or generate the texts, check them and number them.

        Raises:
            InputError: see `read_rows`; or labels do not fit the task, or a split would be empty.
        """
        rows, task = self.read_rows(), self.columns()
        dev, test = self.held_out()
        require_some_negatives([s.negatives for s in rows if s.negatives is not None])
        labels, label_names = task.label_values(rows)
        texts, examples = _number_texts(rows, labels)
        # They hold every text once more.
        del rows, labels
        digests = texts.map(text_digest)
        examples = test.carve(examples, digests, task.kind)
        examples = dev.carve(examples, digests, label_names)
        schema = WITH_NEGATIVES if "negatives" in examples.column_names else EXAMPLES
        return Corpus(texts, examples.cast(schema), task.kind, label_names, digests)


def test_part(parts: Mapping[str, str]) -> frozenset[str]:
    """The part of data of test, or of train where test is taken from that.

    Args:
        parts: by split, what it is read from.
    """
    part = parts.get("test", parts.get("train"))
    return frozenset() if part is None else frozenset({part})


CORPUS_SOURCES = Category(
    "corpus source",
    TaskSource,
    "permafrost.stages.corpus.sources",
    "permafrost.stages.graphs.sources",
)
CorpusConfig = Annotated[TaskSource, CORPUS_SOURCES.field()]
"""Any source, by its `kind`."""


class ColumnsSource(CorpusSource):
    """A source with tables; its task says which columns to read."""

    task: Task
    """The kind of task, and which columns hold its texts and labels."""
    dev: Dev = DevAsGiven()
    """Where the development split comes from."""
    test: Test = TestAsGiven()
    """Where the test split comes from."""
    sample: RowSample | None = None
    """Which rows of the splits are read; all if not given."""

    @abstractmethod
    def split_names(self) -> list[str]:
        """Names of the splits that the source has, in order."""

    @model_validator(mode="after")
    def _splits_go_with_the_task(self) -> "ColumnsSource":
        check_splits(self.task, self.dev, self.test, self.split_names())
        unknown = [] if self.sample is None else self.sample.n_rows.keys() - set(self.split_names())
        if unknown:
            raise ValueError(
                f"sample names the split {quoted(sorted(unknown)[0])}; there are "
                f"{', '.join(self.split_names())}"
            )
        return self

    def sampled(self, rows: SplitRows) -> SplitRows:
        """Those rows of a split that are read.

        Raises:
            InputError: the sample asks for more than there are.
        """
        return rows if self.sample is None else self.sample.of(rows)

    def read_from(self) -> dict[str, str]:
        """By split, the one of the source whose rows it has, without those that are samples."""
        sampled = set[str]() if self.sample is None else set(self.sample.n_rows)
        own = {name: name for name in self.split_names()}
        carved = {n: "train" for n, of in (("dev", self.dev), ("test", self.test)) if of.is_carved}
        return {name: of for name, of in (own | carved).items() if of not in sampled}

    def sample_facts(self) -> dict[str, Any]:
        """What `facts` says of the sample; nothing without one, so that there keys are as they were."""
        return {} if self.sample is None else {"sample": self.sample.model_dump()}

    def columns(self) -> Task:
        """As configured."""
        return self.task

    def held_out(self) -> tuple[Dev, Test]:
        """As configured."""
        return self.dev, self.test


COLUMNS_SOURCES = Category("source", ColumnsSource, "permafrost.stages.corpus.sources")
ColumnsConfig = Annotated[ColumnsSource, COLUMNS_SOURCES.field()]
"""A source that another source may build on."""


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
        examples = {
            "split": pa.repeat(pa.scalar(split.split, pa.string()), n_rows),
            "text": text,
            "text_pair": pair,
            "label": pa.nulls(n_rows, pa.float64()) if label is None else pa.array(label),
        }
        if split.negatives is not None:
            negatives = numbers.slice(start, len(split.negatives.rows))
            start += len(negatives)
            examples["negatives"] = split.negatives.numbered(negatives, (text, pair), split)
        tables.append(pa.table(examples))
    return Texts(encoded.dictionary), pa.concat_tables(tables).combine_chunks()
