"""Configs that gained fields after fits had been published with them."""

from collections.abc import Callable
from typing import Any, ClassVar

from pydantic import BaseModel, model_serializer


class LaterFields(BaseModel):
    """A config that does not write its later fields at their defaults, so that it is written as before."""

    later_fields: ClassVar[frozenset[str]] = frozenset()
    """Fields that are left out at their default."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        fields = type(self).model_fields
        return {
            name: value
            for name, value in handler(self).items()
            if name not in self.later_fields or getattr(self, name) != fields[name].default
        }
