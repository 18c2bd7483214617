"""The fact that a question was made from: an upper bound, as nobody has it at test time."""

from collections.abc import Sequence
from typing import Any, Literal

from permafrost.stages.graphs.facts import Asked, Facts


class GoldFacts(Facts):
    """Each question's own fact. A score with it is an upper bound, and no result of a method."""

    kind: Literal["gold"] = "gold"
    column: str = "fact1"
    """Column of the questions' file."""

    @property
    def gold_column(self) -> str | None:
        """As configured."""
        return self.column

    def facts(self) -> dict[str, Any]:
        """The fields."""
        return self.model_dump()

    def choose(self, asked: Sequence[Asked]) -> list[tuple[str, ...]]:
        """The question's own fact."""
        return [(one.gold,) if one.gold else () for one in asked]
