"""Templates filled with texts that are cut until the whole fits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes.packing import TextInput, between
from permafrost.stages.extraction.recipes.tokenising import (
    overlapping,
    require_own_tokens,
    tokenise,
)
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class Filled:
    """A template filled with one text, tokenised; placeholders are still missing."""

    text: str
    """What was kept of the text."""
    whole: str
    first_char: int
    """Of the text in the last slot, in `whole`."""
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
        """Of the tokens first..end-1 the place in `whole` of the first character that is no space.

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
"""Per own token the number of placeholders that the input needs if the text ends with that token."""


def none_needed(filled: Filled) -> NDArray[np.int64]:
    """No placeholders, wherever the text ends."""
    return np.zeros(filled.n_own, dtype=np.int64)


def fill(
    words: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
    placeholders: Placeholders = none_needed,
) -> list[Filled]:
    """Put each text into all slots of a template, and cut its end until everything fits.

    The text is cut, not its tokens, and the template filled again, so that the input is one that a
    shorter text would have given and the prompt's words stay.

    Args:
        words: of the template, from `words_around`; a slot between each two.
        tokenizer: of the backbone.
        texts: what goes into the slots.
        max_length: tokens at most, special ones and placeholders included.
        placeholders: how many a text needs.

    Raises:
        InputError: a text gives no token, or there is no room for one.
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
            shorter = _shorten(words, tokenizer, filled, n_kept)
            if shorter is None:
                raise InputError(
                    f"max_length is {max_length}, but the template {quoted('…'.join(words))} alone takes "
                    f"{others + int(needed[0])} tokens{', placeholders included' if needed[0] else ''}, "
                    f"which leaves no room for text {i}; use a larger max_length or a shorter template"
                )
            filled = shorter
        results.append(filled)
    return results


def _shorten(
    words: Sequence[str], tokenizer: PreTrainedTokenizerBase, filled: Filled, n_kept: int
) -> Filled | None:
    """The template with the text's first `n_kept` tokens; None if nothing would be left of it."""
    if not n_kept:
        return None
    # The cut text may tokenise differently at its new end, also into more tokens; every round removes
    # at least one character, so this ends.
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
