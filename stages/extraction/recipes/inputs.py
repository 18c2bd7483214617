"""From texts to model input: tokenising, filling a template and cutting until it fits, and finding the
tokens that are the text's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from jaxtyping import Bool, Int64
from numpy.typing import NDArray

from permafrost.stages.extraction.checkpoint import reason
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged

if TYPE_CHECKING:
    import transformers
    from tokenizers import Encoding, Tokenizer


class UnreadableTextError(InputError):
    """A text that cannot become a backbone's input.

    Args:
        number: index of the text in the list that was given.
        before: the message in front of the words "text 3".
        after: the message behind them.
    """

    def __init__(self, number: int, before: str, after: str) -> None:
        super().__init__(number, before, after)
        self.number = number

    def __str__(self) -> str:
        number, before, after = self.args
        return f"{before}text {number}{after}"

    def at(self, number: int) -> UnreadableTextError:
        """The same of a text with another number."""
        return UnreadableTextError(number, *self.args[1:])

    def named(self, name: str) -> InputError:
        """The same message with another name in the place of "text 3"."""
        return InputError(f"{self.args[1]}{name}{self.args[2]}")


@contextmanager
def numbered_as(numbers: Sequence[int]) -> Iterator[None]:
    """Inside, the texts given are some of a list: an `UnreadableTextError` has the number in that list.

    Args:
        numbers: of each text that is given inside.
    """
    try:
        yield
    except UnreadableTextError as error:
        raise error.at(numbers[error.number]) from error


@contextmanager
def numbered_by_first(texts: Iterable[str], unique: Sequence[str]) -> Iterator[None]:
    """Inside, each of some texts is given once: an `UnreadableTextError` has the number of its first place.

    Args:
        texts: the list.
        unique: those that are given inside.
    """
    try:
        yield
    except UnreadableTextError as error:
        text = unique[error.number]
        raise error.at(next(i for i, one in enumerate(texts) if one == text)) from error


PLACEHOLDER = -1
"""Id of a local placeholder, which no vocabulary has: `<PST>` in the papers."""
OPENING = -2
"""Id of a global placeholder, before the whole text: `<B-PST>` in the paper."""


@dataclass(frozen=True)
class Encoded:
    """Model input of several texts."""

    token_ids: Ragged
    """int32; placeholders are PLACEHOLDER or OPENING."""
    span: Ragged
    """bool: poolings run over this token."""
    span_start: Int64[np.ndarray, " n"]
    """First token of the text itself, counted from the input's first token."""
    span_end: Int64[np.ndarray, " n"]
    """One past the last token of the text itself."""
    truncated: Bool[np.ndarray, " n"]
    """Whether the text was cut to fit."""
    copies: Ragged | None = None
    """int64, for each text `[n_copies, 2]` rows of [source, target], counted from the input's first token:
    before a rewired block the source's state is written over the target's. None: nothing is rewired."""
    unseen: Ragged | None = None
    """int64, for each text `[n_ranges, 3]` rows of [query, first key, one past the last], counted from the
    input's first token: keys that a query does not attend to in any block. None: every query attends to
    all before it."""
    auxiliary: Encoded | None = None
    """Contrastive prompting: the same texts under the auxiliary prompt. None: nothing is contrasted."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def take(self, indices: NDArray[np.int64]) -> Encoded:
        """The texts at `indices`, in that order."""
        return Encoded(
            token_ids=self.token_ids.take(indices),
            span=self.span.take(indices),
            span_start=self.span_start[indices],
            span_end=self.span_end[indices],
            truncated=self.truncated[indices],
            copies=None if self.copies is None else self.copies.take(indices),
            unseen=None if self.unseen is None else self.unseen.take(indices),
            auxiliary=None if self.auxiliary is None else self.auxiliary.take(indices),
        )


@dataclass(frozen=True)
class TextInput:
    """Model input of one text; the fields of `Encoded`."""

    ids: NDArray[Any]
    span: NDArray[np.bool_]
    start: int
    end: int
    truncated: bool
    copies: NDArray[np.int64] | None = None
    unseen: NDArray[np.int64] | None = None


def pack(inputs: Sequence[TextInput]) -> Encoded:
    """Pack the inputs of several texts under one recipe; copies are in all of them or in none, and so are
    unseen keys."""
    unseen = [x.unseen for x in inputs if x.unseen is not None]
    copies = [x.copies for x in inputs if x.copies is not None]
    return Encoded(
        token_ids=Ragged.from_arrays([np.asarray(x.ids, dtype=np.int32) for x in inputs]),
        span=Ragged.from_arrays([x.span for x in inputs]),
        span_start=np.asarray([x.start for x in inputs], dtype=np.int64),
        span_end=np.asarray([x.end for x in inputs], dtype=np.int64),
        truncated=np.asarray([x.truncated for x in inputs], dtype=np.bool_),
        copies=Ragged.from_arrays(copies) if copies else None,
        unseen=Ragged.from_arrays(unseen) if unseen else None,
    )


def between(start: int, end: int, n_tokens: int) -> NDArray[np.bool_]:
    """Boolean mask `[n_tokens]`, True at start..end-1."""
    positions = np.arange(n_tokens)
    return (positions >= start) & (positions < end)


TEXT = "{text}"
FIRST = "{first}"
PLACEHOLDER_SLOT = "{placeholder}"


def require_slots(template: str, *slots: str) -> str:
    """The template, if it contains each slot once and in this order.

    Raises:
        ValueError: it does not; pydantic turns this into its own error.
    """
    for slot in slots:
        if template.count(slot) != 1:
            raise ValueError(
                f"{quoted(template)} contains {slot} {template.count(slot)} times; it has to contain it once"
            )
    for first, second in pairwise(slots):
        if template.index(first) > template.index(second):
            raise ValueError(
                f"{quoted(template)} has {first} after {second}; it has to come before it"
            )
    return template


def with_spelled_template(values: Any, spellings: Mapping[str, str]) -> Any:
    """The fields of a recipe with the template that its `spelling` names, if they have a spelling and none.

    A spelling that does not exist is left to be refused by its field.
    """
    if not isinstance(values, Mapping) or "template" in values:
        return values
    template = spellings.get(str(values.get("spelling")))
    return values if template is None else {**values, "template": template}


def words_around(template: str, *slots: str) -> tuple[str, ...]:
    """The template's own words, split at its slots."""
    words = [template]
    for slot in slots:
        words += words.pop().split(slot)
    return tuple(words)


_AT_A_TIME = 256
"""Texts given to the tokenizer's threads together."""


def require_readable(texts: Sequence[str]) -> None:
    """Refuse texts that are blank or not valid Unicode.

    Raises:
        UnreadableTextError: there is such a text; the message gives its index.
    """
    for i, text in enumerate(texts):
        if not text.strip():
            raise UnreadableTextError(
                i,
                "",
                f" is {quoted(text)}, which has nothing to tokenise; remove empty texts from the input",
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UnreadableTextError(
                i,
                "",
                f" holds half of a surrogate pair (U+{ord(text[error.start]):04X} at character "
                f"{error.start}), which no tokenizer reads; repair or remove it",
            ) from error


def require_own_tokens(i: int, text: str, n_own: int) -> None:
    """Refuse a text that has no token of its own.

    Raises:
        UnreadableTextError: `n_own` is 0; the message gives the text's index `i`.
    """
    if n_own < 1:
        raise UnreadableTextError(
            i,
            "",
            f" ({quoted(text)}) gives no token of its own with this tokenizer: only special tokens or prompt "
            "words are left of it; remove it from the input",
        )


def tokenise(
    tokenizer: transformers.PreTrainedTokenizerBase, texts: Sequence[str]
) -> Iterator[Encoding]:
    """Tokenise texts, with special tokens exactly as the tokenizer adds them by itself.

    They are encoded in groups, as an encoding takes about 150 bytes per token.

    Raises:
        UnreadableTextError: the tokenizer fails on a text; the message gives its index.
    """
    # The Rust tokenizer itself: the same tokens as tokenizer(texts), without its per-call truncation
    # state, which two threads would change under each other's feet.
    rust = cast("Tokenizer", tokenizer.backend_tokenizer)
    for at in range(0, len(texts), _AT_A_TIME):
        group = list(texts[at : at + _AT_A_TIME])
        try:
            encodings = rust.encode_batch(group, add_special_tokens=True)
        except Exception:
            # The library raises plain Exception, and says nothing of the text.
            _require_encodable(rust, group, at)
            raise
        yield from encodings


def _require_encodable(tokenizer: Tokenizer, texts: Sequence[str], first: int) -> None:
    """Refuse the text that a tokenizer fails on.

    Args:
        tokenizer: that failed on one of the texts.
        texts: some of a list.
        first: index in the list of the first.

    Raises:
        UnreadableTextError: a text cannot be tokenised; the message gives its index in the list.
    """
    for i, text in enumerate(texts, first):
        try:
            tokenizer.encode(text, add_special_tokens=True)
        except Exception as error:
            raise UnreadableTextError(
                i,
                "",
                f" ({quoted(text)}) cannot be tokenised ({reason(error)}); remove it from the input, or give "
                "the tokenizer a token for what is not in its vocabulary",
            ) from error


def overlapping(encoding: Encoding, first_char: int, n_chars: int) -> tuple[int, int]:
    """The first token that overlaps these characters and one past the last; (0, 0) if there is none.

    A token that the text shares with the prompt counts as the text's own.
    """
    own = [
        j
        for j, (start, end) in enumerate(encoding.offsets)
        if start < first_char + n_chars and end > max(first_char, start)
    ]
    return (own[0], own[-1] + 1) if own else (0, 0)


@dataclass(frozen=True)
class Filled:
    """A template filled with one text, tokenised; placeholders are still missing."""

    text: str
    """What was kept of the text."""
    whole: str
    first_char: int
    """Index in `whole` of the first character of the text in the last slot."""
    encoding: Encoding
    start: int
    """First token of the text in the last slot."""
    end: int
    truncated: bool

    @property
    def n_own(self) -> int:
        """Tokens of the text in the last slot."""
        return self.end - self.start

    def content_starts(self, first: int, end: int) -> NDArray[np.int64]:
        """For each token first..end-1 the index in `whole` of its first non-space character.

        A token of spaces alone belongs to what follows it.
        """
        contents = np.flatnonzero([not c.isspace() for c in self.whole])
        starts = [start for start, _ in self.encoding.offsets[first:end]]
        after = np.searchsorted(contents, np.asarray(starts, dtype=np.int64))
        return np.append(contents, len(self.whole))[after]

    def as_input(self) -> TextInput:
        """Model input without placeholders; the span is the text in the last slot."""
        ids = np.asarray(self.encoding.ids)
        span = between(self.start, self.end, len(ids))
        return TextInput(ids, span, self.start, self.end, self.truncated)


Placeholders = Callable[[Filled], NDArray[np.int64]]
"""For each of the text's tokens, the number of placeholders that the input needs if the text ends there."""


def none_needed(filled: Filled) -> NDArray[np.int64]:
    """No placeholders, wherever the text ends."""
    return np.zeros(filled.n_own, dtype=np.int64)


def fill(
    words: Sequence[str],
    tokenizer: transformers.PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    placeholders: Placeholders = none_needed,
) -> list[Filled]:
    """Put each text into all slots of a template, and cut its end until everything fits.

    The text is cut, not its tokens, and the template filled again, so that the input is what a shorter text
    would have given, and the prompt's words stay.

    Args:
        words: of the template, from `words_around`; a slot lies between each two.
        tokenizer: of the backbone.
        texts: what goes into the slots.
        max_length: maximum tokens, special tokens and placeholders included.
        placeholders: how many a text needs.

    Raises:
        UnreadableTextError: a text gives no token, or there is no room for one.
    """
    encodings = tokenise(tokenizer, [text.join(words) for text in texts])
    results: list[Filled] = []
    for i, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
        filled = _filled(words, text, encoding, is_cut=False)
        require_own_tokens(i, text, filled.n_own)
        n_slots = len(words) - 1
        while len(filled.encoding.ids) + (needed := placeholders(filled))[-1] > max_length:
            others = len(filled.encoding.ids) - n_slots * filled.n_own
            costs = others + n_slots * np.arange(1, filled.n_own + 1) + needed
            n_kept = int(np.searchsorted(costs, max_length, side="right"))
            with numbered_as([i]):
                shorter = _shorten(words, tokenizer, filled, n_kept)
            if shorter is None:
                raise UnreadableTextError(
                    i,
                    f"max_length is {max_length}, but the template {quoted('…'.join(words))} alone takes "
                    f"{others + int(needed[0])} tokens{', placeholders included' if needed[0] else ''}, "
                    "which leaves no room for ",
                    "; use a larger max_length or a shorter template",
                )
            filled = shorter
        results.append(filled)
    return results


def _shorten(
    words: Sequence[str],
    tokenizer: transformers.PreTrainedTokenizerBase,
    filled: Filled,
    n_kept: int,
) -> Filled | None:
    """The template with the text's first `n_kept` tokens; None if nothing would be left of it."""
    if not n_kept:
        return None
    # The cut text may tokenise differently at its new end, even into more tokens; every round removes at
    # least one character, so this ends.
    cut = filled.encoding.offsets[filled.start + n_kept - 1][1] - filled.first_char
    text = filled.text[: min(cut, len(filled.text) - 1)]
    (encoding,) = tokenise(tokenizer, [text.join(words)])
    shorter = _filled(words, text, encoding, is_cut=True)
    return shorter if shorter.n_own else None


def _filled(words: Sequence[str], text: str, encoding: Encoding, *, is_cut: bool) -> Filled:
    whole = text.join(words)
    first_char = len(whole) - len(words[-1]) - len(text)
    start, end = overlapping(encoding, first_char, len(text))
    return Filled(text, whole, first_char, encoding, start, end, is_cut)
