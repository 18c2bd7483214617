"""What every recipe has and offers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, field_validator, model_serializer
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes.alterations import Intervention, Rewiring
from permafrost.stages.extraction.recipes.encoded import Encoded
from permafrost.stages.extraction.recipes.slots import FIRST, PLACEHOLDER_SLOT, TEXT, require_slots
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.quoting import quoted

Readout = Literal["auto", "first", "last"]


class BaseRecipe(BaseModel, ABC):
    """How a text becomes model input and how the forward pass is altered."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    readout: Readout = "auto"
    """Token whose attention row and state are the readout; `auto` is resolved by `resolve_recipe`."""
    normalise: Literal["none", "sentence"] = "none"
    """What is done to a text first; `sentence` as in `normalise_sentence`."""
    instruction: str = TEXT
    """What a task says around the input; {text}, once, stands for all that the recipe makes of a text (Echo:
    both copies). Its words are not in the span, and are never cut."""

    # Fields that came after stores had been made with the class: left out of the identity at their
    # default, so that those stores keep their ids.
    later_fields: ClassVar[frozenset[str]] = frozenset({"normalise", "instruction"})

    @field_validator("instruction")
    @classmethod
    def _has_the_text_once(cls, instruction: str) -> str:
        for slot in (FIRST, PLACEHOLDER_SLOT):
            if slot in instruction:
                raise ValueError(
                    f"{quoted(instruction)} contains {slot}, which has a meaning in templates alone; the "
                    f"only slot of an instruction is {TEXT}"
                )
        return require_slots(instruction, TEXT)

    @classmethod
    def name(cls) -> str:
        """The value of `kind`."""
        return cls.model_fields["kind"].default

    @classmethod
    def options(cls) -> list[str]:
        """Fields that a user may set, those of the class itself first."""
        shared = set(BaseRecipe.model_fields)
        return sorted(
            (name for name in cls.model_fields if name != "kind"), key=shared.__contains__
        )

    @property
    def rewiring(self) -> Rewiring | None:
        """Copies of states between tokens; None without. Of a resolved recipe."""
        return None

    @property
    def intervention(self) -> Intervention | None:
        """Change of the last token's attention output; None without. Of a resolved recipe."""
        return None

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """Values for the automatic fields with this backbone.

        Raises:
            InputError: the backbone cannot do what the recipe asks for.
        """
        automatic = "last" if sizes.is_decoder else "first"
        return {"readout": automatic if self.readout == "auto" else self.readout}

    def instructed(self, template: str) -> str:
        """A template with the words of the instruction around it."""
        return self.instruction.replace(TEXT, template)

    @abstractmethod
    def encoded(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> Encoded:
        """Model input of texts that are readable and normalised already; see `encode`."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        defaults = type(self).model_fields
        dumped = handler(self)
        return {
            name: dumped[name]
            for name in ("kind", *self.options())
            if name in dumped
            and not (name in self.later_fields and getattr(self, name) == defaults[name].default)
        }
