"""No facts."""

from collections.abc import Sequence
from typing import Any, Literal

from permafrost.stages.graphs.facts import Asked, Facts


class NoFacts(Facts):
    """A question stands alone."""

    kind: Literal["none"] = "none"

    def facts(self) -> dict[str, Any]:
        """The kind alone."""
        return {"kind": self.kind}

    def choose(self, asked: Sequence[Asked]) -> list[tuple[str, ...]]:
        """None for any question."""
        return [() for _ in asked]
