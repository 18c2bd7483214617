"""How a text becomes model input: recipes, tokenisation, truncation and spans.

A recipe is part of a store's identity, with all its fields. The span are the tokens that poolings run
over; `span_start:span_end` is the part of the input that is the text itself.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, cast, get_args

import numpy as np
from jaxtyping import Bool, Int64
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from stages.extraction.sizes import BackboneSizes
from storage.errors import InputError
from storage.ragged import Ragged

Readout = Literal["auto", "first", "last"]
SLOT = "{text}"


class PlainRecipe(BaseModel):
    """The text as it is, with the special tokens that the tokenizer adds by itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["plain"] = "plain"
    specials: Literal["include", "exclude"] = "include"
    """Whether added special tokens are in the span, as sentence-transformers and the papers have it."""
    readout: Readout = "auto"
    """Token whose attention row and state are the readout; `auto` is resolved by `resolve_recipe`."""


class TemplateRecipe(BaseModel):
    """The text inside a prompt; the span is the text's own tokens, never the prompt's words."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["template"] = "template"
    template: str
    """Contains {text} exactly once. Special tokens are added around it as around any text."""
    readout: Readout = "auto"
    """Token whose attention row and state are the readout; `auto` is resolved by `resolve_recipe`."""

    @field_validator("template")
    @classmethod
    def _has_one_slot(cls, template: str) -> str:
        if template.count(SLOT) != 1:
            raise ValueError(
                f"{template!r} contains {SLOT} {template.count(SLOT)} times; it has to contain it once"
            )
        return template


Recipe = Annotated[PlainRecipe | TemplateRecipe, Field(discriminator="kind")]

_ADAPTER: TypeAdapter[PlainRecipe | TemplateRecipe] = TypeAdapter(Recipe)
_KINDS: dict[str, type[BaseModel]] = {
    cls.model_fields["kind"].default: cls for cls in get_args(get_args(Recipe)[0])
}


def parse_recipe(text: str) -> Recipe:
    """Read `plain`, `plain:specials=exclude` or `template:readout=last,template=Topic of {text}, please:`.

    A comma ends a value only where `,FIELD=` with a field of this recipe follows, so that prompts may
    hold commas, colons and equals signs.

    Raises:
        InputError: unknown kind, field or value; says what exists.
    """
    kind, _, options = text.partition(":")
    if kind not in _KINDS:
        raise InputError(f"there is no recipe {kind!r}; there are {', '.join(sorted(_KINDS))}")
    fields = [name for name in _KINDS[kind].model_fields if name != "kind"]
    known = "|".join(map(re.escape, fields))
    values: dict[str, str] = {}
    for part in re.split(rf",(?=(?:{known})=)", options) if options else []:
        name, equals, value = part.partition("=")
        if not equals or name not in fields or name in values:
            reason = "is given twice" if name in values else "is no option"
            raise InputError(
                f"{name!r} in the recipe {text!r} {reason}; {kind} has {', '.join(fields)}, "
                f"written as {kind}:{fields[0]}=..."
            )
        values[name] = value
    try:
        return _ADAPTER.validate_python({"kind": kind, **values})
    except ValidationError as error:
        reasons = "; ".join(f"{e['loc'][-1]}: {e['msg']}" for e in error.errors())
        raise InputError(f"cannot read the recipe {text!r}: {reasons}") from error


def resolve_recipe(recipe: Recipe, sizes: BackboneSizes) -> Recipe:
    """Make an automatic readout definite: the first token in an encoder, the last one in a decoder."""
    if recipe.readout != "auto":
        return recipe
    return recipe.model_copy(update={"readout": "last" if sizes.is_decoder else "first"})


def definite_readout(recipe: Recipe) -> Literal["first", "last"]:
    """The readout of a resolved recipe."""
    assert recipe.readout != "auto", "a recipe has to be resolved for a backbone before it is used"
    return recipe.readout


@dataclass(frozen=True)
class Encoded:
    """Model input of several texts."""

    token_ids: Ragged
    """int32."""
    span: Ragged
    """bool: poolings run over this token."""
    span_start: Int64[np.ndarray, " n"]
    """First token of the text itself, counted from the input's first token."""
    span_end: Int64[np.ndarray, " n"]
    """One past the last token of the text itself."""
    truncated: Bool[np.ndarray, " n"]
    """Whether the text was cut to fit."""


def encode(
    recipe: Recipe, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
) -> Encoded:
    """Tokenise texts under a recipe, special tokens exactly as the tokenizer adds them by itself.

    A text that is too long loses its end. Special tokens and the prompt's words stay: `plain` cuts
    tokens, as transformers' own truncation on the right does; `template` cuts the text and fills the
    template again, so that the input is one that a shorter text would have given.

    Args:
        recipe: how texts become input.
        tokenizer: of the backbone; a fast one, from `load_tokenizer`.
        texts: any number from 1.
        max_length: tokens per input at most, special tokens included.

    Raises:
        InputError: an empty text, a text of which no token is left, or a prompt that fills max_length;
            names the text by its place in `texts`, from 0.
    """
    for i, text in enumerate(texts):
        if not text.strip():
            raise InputError(
                f"text {i} is {text!r}, which has nothing to tokenise; remove empty texts from the input"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InputError(
                f"text {i} holds half of a surrogate pair (U+{ord(text[error.start]):04X} at character "
                f"{error.start}), which no tokenizer reads; repair or remove it"
            ) from error
    if isinstance(recipe, PlainRecipe):
        inputs = _encode_plain(recipe, tokenizer, texts, max_length)
    else:
        inputs = _encode_template(recipe, tokenizer, texts, max_length)
    for i, item in enumerate(inputs):
        if item.end <= item.start:
            raise InputError(
                f"text {i} ({texts[i]!r:.60}) gives no token of its own with this tokenizer: only special "
                f"tokens or prompt words are left of it; remove it from the input"
            )
    return Encoded(
        token_ids=Ragged.from_arrays([np.asarray(x.ids, dtype=np.int32) for x in inputs]),
        span=Ragged.from_arrays([_span(x) for x in inputs]),
        span_start=np.asarray([x.start for x in inputs], dtype=np.int64),
        span_end=np.asarray([x.end for x in inputs], dtype=np.int64),
        truncated=np.asarray([x.truncated for x in inputs], dtype=np.bool_),
    )


@dataclass(frozen=True)
class _Input:
    ids: list[int]
    start: int
    end: int
    truncated: bool
    pools_all: bool


def _span(item: _Input) -> np.ndarray:
    span = np.full(len(item.ids), item.pools_all)
    span[item.start : item.end] = True
    return span


def _encode_plain(
    recipe: PlainRecipe, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
) -> list[_Input]:
    pools_all = recipe.specials == "include"
    inputs: list[_Input] = []
    for i, encoding in enumerate(_tokenise(tokenizer, list(texts))):
        ids = encoding.ids
        own = [j for j, special in enumerate(encoding.special_tokens_mask) if not special]
        # A text without tokens of its own is reported by `encode`.
        start, end = (own[0], own[-1] + 1) if own else (0, 0)
        excess = max(len(ids) - max_length, 0)
        if excess and end - excess <= start:
            raise InputError(
                f"max_length is {max_length}, but text {i} gets {len(ids) - (end - start)} special tokens, "
                f"which leaves no room for the text; use a larger max_length"
            )
        kept = end - excess
        inputs.append(_Input(ids[:kept] + ids[end:], start, kept, excess > 0, pools_all))
    return inputs


def _encode_template(
    recipe: TemplateRecipe,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
) -> list[_Input]:
    before, after = recipe.template.split(SLOT)
    encodings = _tokenise(tokenizer, [before + text + after for text in texts])
    inputs: list[_Input] = []
    for i, (text, whole) in enumerate(zip(texts, encodings, strict=True)):
        encoding, kept = whole, text
        start, end = _own_tokens(encoding, len(before), len(kept))
        while len(encoding.ids) > max_length:
            room = end - start - (len(encoding.ids) - max_length)
            if room < 1:
                raise InputError(
                    f"max_length is {max_length}, but the template {recipe.template!r} alone takes "
                    f"{len(encoding.ids) - (end - start)} tokens, which leaves no room for text {i}; use a "
                    f"larger max_length or a shorter template"
                )
            # The cut text may tokenise differently at its new end, also into more tokens; every round
            # removes at least one character, so this ends.
            cut = encoding.offsets[start + room - 1][1] - len(before)
            kept = kept[: min(cut, len(kept) - 1)]
            (encoding,) = _tokenise(tokenizer, [before + kept + after])
            start, end = _own_tokens(encoding, len(before), len(kept))
        inputs.append(_Input(encoding.ids, start, end, kept != text, False))
    return inputs


def _own_tokens(encoding: Encoding, first_char: int, n_chars: int) -> tuple[int, int]:
    """Tokens that overlap the text's characters; one that it shares with the prompt counts as its own."""
    own = [
        j
        for j, (start, end) in enumerate(encoding.offsets)
        if start < first_char + n_chars and end > max(first_char, start)
    ]
    return (own[0], own[-1] + 1) if own else (0, 0)


def _tokenise(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[Encoding]:
    # The Rust tokenizer itself: the same tokens as tokenizer(texts), without its per-call truncation
    # state, which two threads would change under each other's feet.
    rust = cast(Tokenizer, tokenizer.backend_tokenizer)
    return rust.encode_batch(texts, add_special_tokens=True)
