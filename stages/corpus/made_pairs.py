"""The base class of sources that make longer pairs from the labelled pairs of another source."""

from typing import Any

from pydantic import model_validator

from permafrost.stages.corpus.columns import Task
from permafrost.stages.corpus.source import ColumnsConfig, CorpusSource


class MadePairs(CorpusSource):
    """Pairs made from those of `source`, split by split; each keeps a label that its task has."""

    source: ColumnsConfig
    """Source of the pairs. Its task is of kind `similarity`, or also, where pairs keep their own label, of
    kind `pair_classification`."""

    @model_validator(mode="after")
    def _splits_of_the_source(self) -> "MadePairs":
        if self.source.dev.is_carved or self.source.test.is_carved:
            raise ValueError(
                "a dev or test split carved from train would be another one at every length; give it as one "
                "of the source's own"
            )
        return self

    def columns(self) -> Task:
        """The task of the source."""
        return self.source.columns()

    def facts(self) -> dict[str, Any]:
        """The facts of the source, and how pairs are made from its own."""
        return {**self.model_dump(exclude={"source"}), "source": self.source.facts()}
