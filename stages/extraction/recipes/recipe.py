"""The base class of recipes, and what is done with a recipe."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_serializer

from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.extraction.recipes.inputs import (
    FIRST,
    PLACEHOLDER_SLOT,
    TEXT,
    Encoded,
    require_readable,
    require_slots,
)
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.kinds import NAME_IT, Category, Kind
from permafrost.stages.plugins import in_file, origin_of, packages
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import fingerprint
from permafrost.storage.keys import digest
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import transformers

Readout = Literal["auto", "first", "last"]

_CODE = "code"
"""Key in an identity: the digest of a plug-in's source."""


@dataclass(frozen=True)
class Rewiring:
    """States are copied to placeholders before some blocks: token prepending, hierarchical or not."""

    start: int
    """Copies happen before the blocks with 0-based index start..stop-1."""
    stop: int
    """One past the last of them; equal to `start` for no copies at all."""
    placeholder: Literal["mean", "noise"]
    """A placeholder's embedding: the mean of the input embedding matrix, which is what transformers' own
    initialisation of an added token amounts to, or N(0, 1), with which TP's released code overwrites it."""
    seed: int
    """Seed of the noise."""


@dataclass(frozen=True)
class Intervention:
    """The last token's input of one block's output projection is replaced: contrastive prompting."""

    block: int
    """1-based."""
    mode: Literal["scaled", "norm"]
    """z becomes `coefficient * (z - z_auxiliary)`, or that difference rescaled to the norm of z."""
    coefficient: float
    """Used by `scaled` only."""


class Recipe(Kind):
    """How a text becomes model input and how the forward pass is altered."""

    readout: Readout = "auto"
    """Token whose attention row and state are the readout; `auto` is resolved by `resolve_recipe`."""
    normalise: Literal["none", "sentence"] = "none"
    """Preprocessing of the text; for `sentence` see `normalise_sentence`."""
    instruction: str = TEXT
    """A task's instruction around the input; {text}, exactly once, stands for the recipe's whole input (for
    Echo both copies). Its words are not in the span, and are never cut."""
    max_length: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    """Maximum tokens per input under this recipe, in the place of the backbone's; a store has one length, so
    that this one is the store of the same recipe under a backbone with that `max_length`."""

    # Fields added after stores had been made with the class: left out of the identity at their default, so
    # that those stores keep their ids.
    later_fields: ClassVar[frozenset[str]] = frozenset({"normalise", "instruction", "max_length"})
    is_ensemble: ClassVar[bool] = False
    """Whether it may have several members, each a recipe with a store of its own."""
    says_text_twice: ClassVar[bool] = False
    """Whether the text follows a copy of itself, so that its tokens have seen what comes after them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if _CODE in cls.model_fields:
            raise TypeError(
                f"the recipe {cls.__name__} has a field {_CODE!r}, which in a store's identity is the digest "
                "of its source; rename the field"
            )

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
        shared = set(Recipe.model_fields)
        return sorted(
            (name for name in cls.model_fields if name != "kind"), key=shared.__contains__
        )

    @property
    def rewiring(self) -> Rewiring | None:
        """Copies of states between tokens, of a resolved recipe; None if there are none."""
        return None

    @property
    def intervention(self) -> Intervention | None:
        """The change of the last token's attention output, of a resolved recipe; None if there is none."""
        return None

    @property
    def masks_attention(self) -> bool:
        """Whether some tokens do not attend to others that they would see."""
        return False

    def members(self) -> tuple[Recipe, ...]:
        """The recipe itself; for an ensemble its members, in order."""
        return (self,)

    def definite(self, sizes: BackboneSizes) -> dict[str, object]:
        """Values of the `auto` fields for this backbone.

        Raises:
            InputError: the backbone cannot do what the recipe asks for.
        """
        automatic = "last" if sizes.is_decoder else "first"
        return {"readout": automatic if self.readout == "auto" else self.readout}

    def instructed(self, template: str) -> str:
        """A template with the instruction's words around it."""
        return self.instruction.replace(TEXT, template)

    @abstractmethod
    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Model input for texts that are already checked and normalised; see `encode`."""

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


RECIPES = Category("recipe", Recipe, "permafrost.stages.extraction.recipes")
RecipeConfig = Annotated[Recipe, RECIPES.field()]
"""Any recipe, by its `kind`."""


def resolve_recipe(recipe: Recipe, sizes: BackboneSizes) -> Recipe:
    """Resolve `auto` fields: the readout is the first token in an encoder, the last in a decoder.

    Raises:
        InputError: the backbone cannot do what the recipe asks for, or the recipe is an ensemble.
    """
    return recipe.model_copy(update=recipe.definite(sizes))


def definite_readout(recipe: Recipe) -> Literal["first", "last"]:
    """The readout of a resolved recipe."""
    assert recipe.readout != "auto", "a recipe has to be resolved for a backbone before it is used"
    return recipe.readout


def recipe_identity(recipe: Recipe) -> dict[str, Any]:
    """JSON form of a recipe, as it goes into a store's identity.

    A plug-in's recipe also has `code`, a digest of its source, so that an edited one writes another store.
    Built-in recipes have none, so that a refactoring does not invalidate stores; `verify --recompute` guards
    them instead.
    """
    return recipe.model_dump(mode="json") | _code(type(recipe))


def recipe_of(identity: Mapping[str, Any]) -> Recipe:
    """The recipe in a store's identity.

    Raises:
        InputError: there is no such recipe here, or it has other fields.
    """
    fields = {name: value for name, value in identity.items() if name != _CODE}
    try:
        return RECIPES.validate(fields)
    except ValueError as error:
        raise InputError(
            f"the store was made with the recipe {quoted(fields)}, which cannot be made here: {error}; if it "
            f"is of a plug-in, name its file: {NAME_IT}"
        ) from error


def require_same_recipe(name: str, identity: Mapping[str, Any]) -> None:
    """For what is to be used again with the recipe of an identity.

    Raises:
        InputError: its plug-in is not in use here, or has been edited since.
    """
    kind = type(recipe_of(identity))
    if identity.get(_CODE) != _code(kind).get(_CODE):
        raise InputError(
            f"{name} was made with other code of the recipe {quoted(identity['kind'])} than "
            f"{origin_of(kind)} has now, so its inputs would be others; name the file as it was, or make it "
            "again"
        )


def _code(kind: type[Recipe]) -> dict[str, str]:
    """The digest of a plug-in recipe's source, and of what it reaches in plug-ins."""
    modules = packages()
    is_plugin = any(kind.__module__ == m or kind.__module__.startswith(f"{m}.") for m in modules)
    if not is_plugin:
        return {}
    # The same store whether its file is named in `plugins` or its class is registered.
    found = sorted((in_file(e), sha) for e, sha in fingerprint(kind, modules).definitions.items())
    return {_CODE: digest(found)}


def encode(
    recipe: Recipe,
    tokenizer: transformers.PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
) -> Encoded:
    """Tokenise texts under a recipe, special tokens exactly as the tokenizer adds them by itself.

    A text that is too long loses its end. Special tokens and the prompt's words stay: `plain` cuts
    tokens, as transformers' own truncation on the right does; recipes with a template cut the text and
    fill the template again, so that the input is one that a shorter text would have given.

    Args:
        recipe: how texts become input; not an ensemble.
        tokenizer: of the backbone; a fast one, from `load_tokenizer`.
        texts: at least one.
        max_length: maximum tokens per input, special tokens and placeholders included.

    Raises:
        InputError: an empty text, a text without a token of its own, a prompt that fills max_length, or an
            ensemble; the message gives the text's index in `texts`.
    """
    require_readable(texts)
    if recipe.normalise == "sentence":
        texts = [normalise_sentence(text) for text in texts]
    return recipe.encoded(tokenizer, texts, max_length)


def normalise_sentence(text: str) -> str:
    """Prepare a text as the PromptEOL family of methods does.

    White space becomes single spaces, a full stop is added if the final punctuation is missing and replaces
    a final question mark, and double quotes become single ones, so that the text cannot close the prompt's
    quotes.
    """
    words = " ".join(text.split())
    if words and words[-1] not in ".?\"'":
        words += "."
    words = words.replace('"', "'")
    if words.endswith("?"):
        words = words[:-1] + "."
    return words.strip()
