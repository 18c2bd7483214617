"""Facts put before a question: the base class of the kinds that choose them."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from permafrost.stages.kinds import Category, Kind


@dataclass(frozen=True)
class Asked:
    """A question with one of its choices."""

    question: str
    choice: str
    gold: str | None
    """The fact that the question was made from, where the file has it."""


class Facts(Kind):
    """How facts are chosen for a question and a choice."""

    @property
    def gold_column(self) -> str | None:
        """The column of the questions' file with their gold facts, if they are read."""
        return None

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What enters the key of a corpus: names of files are replaced by digests.

        Raises:
            InputError: a file does not exist or cannot be read.
        """

    @abstractmethod
    def choose(self, asked: Sequence[Asked]) -> list[tuple[str, ...]]:
        """The facts of each, the best one first; none where there is none.

        Raises:
            InputError: the facts cannot be read.
        """


FACTS = Category("choice of facts", Facts, "permafrost.stages.graphs.fact_kinds")
FactsConfig = Annotated[Facts, FACTS.field_or_name()]
"""Any choice of facts, by its `kind`, or by its name alone."""
