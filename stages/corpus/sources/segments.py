"""Halves of long texts, for segment matching: every example is a prefix with its own suffix."""

from functools import partial
from typing import Any, Literal

import pyarrow as pa
from pydantic import model_validator

from permafrost.stages.corpus.columns import Unlabelled
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.source import ColumnsConfig, CorpusSource
from permafrost.stages.corpus.token_cut import TokenCut
from permafrost.stages.metrics.segment_matching import SegmentSplit, middle_word, split_segments
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


class SegmentsCorpus(SegmentSplit, CorpusSource):
    """Long texts from files or a dataset, cut in two; each split separately.

    ```yaml
    kind: segments
    source: {kind: files, files: {test: data/articles.txt}, task: {kind: unlabelled}}
    n_texts: 500
    ```
    """

    kind: Literal["segments"] = "segments"
    source: ColumnsConfig
    """Source of the long texts; its task is of kind `unlabelled`."""
    cut: TokenCut | None = None
    """At a token drawn by the seed; before the middle word if not given."""

    @model_validator(mode="after")
    def _source_is_plain_texts(self) -> "SegmentsCorpus":
        if not isinstance(self.source.task, Unlabelled):
            raise ValueError(
                f"the source of segments has a task of kind {quoted(self.source.task.kind)}; use "
                "'unlabelled' and name the column with the texts"
            )
        if self.source.task.text_pair is not None:
            raise ValueError(
                f"the source of segments has pairs (text_pair is {quoted(self.source.task.text_pair)}); both "
                "segments are cut from one text, so leave text_pair out"
            )
        if self.source.dev.is_carved or self.source.test.is_carved:
            raise ValueError("nothing is trained on segments; leave dev and test of the source out")
        return self

    def columns(self) -> Unlabelled:
        """Pairs without labels."""
        return Unlabelled()

    def facts(self) -> dict[str, Any]:
        """The facts of the source, and which of its texts are cut."""
        cut = {} if self.cut is None else {"cut": self.cut.facts()}
        return {**self.model_dump(exclude={"source", "cut"}), "source": self.source.facts(), **cut}

    def rows(self) -> list[SplitRows]:
        """Read, choose and cut the texts of every split.

        Raises:
            InputError: see the source; there is no such tokenizer; or a split has fewer than two texts that
            can be cut.
        """
        return [_cut(split, self) for split in self.source.read_rows()]


def _cut(split: SplitRows, config: SegmentsCorpus) -> SplitRows:
    try:
        cut, seed = config.cut, config.seed
        halves = middle_word if cut is None else partial(cut.halves, seed=seed)
        prefixes, suffixes = split_segments(split.text.to_pylist(), config, halves)
    except InputError as error:
        raise InputError(f"{split.where}: {error}") from error
    return SplitRows(
        split=split.split,
        where=f"the halves of the texts of {split.where}",
        text=pa.chunked_array([prefixes], pa.large_string()),
        text_pair=pa.chunked_array([suffixes], pa.large_string()),
        label=None,
        class_names=None,
    )
