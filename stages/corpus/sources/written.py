"""Texts that are written in the experiment itself, such as a paper's examples."""

from typing import Annotated, Any, Literal

import pyarrow as pa
from pydantic import Field, StringConstraints

from permafrost.stages.bounds import MAX_TEXTS
from permafrost.stages.corpus.columns import Unlabelled
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.source import CorpusSource


class WrittenTexts(CorpusSource):
    """A few texts without labels, for what shows or measures texts; nothing is scored on them.

    ```yaml
    kind: texts
    texts: [A person is riding a horse]
    ```
    """

    kind: Literal["texts"] = "texts"
    texts: tuple[Annotated[str, StringConstraints(pattern=r"\S")], ...] = Field(
        min_length=1, max_length=MAX_TEXTS
    )
    """The texts, as they are."""

    def columns(self) -> Unlabelled:
        """Texts without labels."""
        return Unlabelled()

    def facts(self) -> dict[str, Any]:
        """The texts."""
        return self.model_dump(mode="json")

    def rows(self) -> list[SplitRows]:
        """One split, `test`."""
        return [
            SplitRows(
                split="test",
                where="the texts of the experiment",
                text=pa.chunked_array([list(self.texts)], pa.large_string()),
                text_pair=None,
                label=None,
                class_names=None,
            )
        ]
