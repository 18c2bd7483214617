"""Token prepending: one placeholder before the text that takes over the state of its end."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import field_validator
from transformers import PreTrainedTokenizerBase

from permafrost.stages.extraction.recipes.encoded import PLACEHOLDER, Encoded
from permafrost.stages.extraction.recipes.filling import Filled, fill
from permafrost.stages.extraction.recipes.packing import TextInput, between, pack
from permafrost.stages.extraction.recipes.rewired import RewiredRecipe
from permafrost.stages.extraction.recipes.slots import (
    PLACEHOLDER_SLOT,
    TEXT,
    require_slots,
    words_around,
)


class TokenPrependingRecipe(RewiredRecipe):
    """Token Prepending (TP): a placeholder before the text shows its end to all of its tokens.

    Without copies (start equal to stop) this is the template without the placeholder, plus one token that
    means nothing. The released code pads on the left and counts the padding as positions; we do neither.
    """

    kind: Literal["token_prepending"] = "token_prepending"
    template: str = 'This sentence : {placeholder}"{text}" means in one word:"'
    """Contains {placeholder} and after it {text}, once each."""
    source: Literal["input_end", "text_end"] = "input_end"
    """Whose state the placeholder takes over: the input's last token, as in the paper, or the text's."""

    @field_validator("template")
    @classmethod
    def _has_both_slots(cls, template: str) -> str:
        return require_slots(template, PLACEHOLDER_SLOT, TEXT)

    @property
    def _whole(self) -> str:
        return self.instructed(self.template)

    def encoded(
        self, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], max_length: int
    ) -> Encoded:
        """The placeholder is put between tokens of the template without it."""
        words = words_around(self._whole.replace(PLACEHOLDER_SLOT, ""), TEXT)
        filled = fill(words, tokenizer, texts, max_length, _one_needed)
        return pack([self._input(x) for x in filled])

    def _input(self, filled: Filled) -> TextInput:
        place = _first_token_from(filled, self._whole.index(PLACEHOLDER_SLOT))
        ids = np.insert(np.asarray(filled.encoding.ids), place, PLACEHOLDER)
        start, end = filled.start + 1, filled.end + 1
        source = len(ids) - 1 if self.source == "input_end" else end - 1
        return TextInput(
            ids=ids,
            span=between(start, end, len(ids)),
            start=start,
            end=end,
            truncated=filled.truncated,
            copies=np.asarray([[source, place]], dtype=np.int64),
        )


def _one_needed(filled: Filled) -> NDArray[np.int64]:
    return np.ones(filled.n_own, dtype=np.int64)


def _first_token_from(filled: Filled, char: int) -> int:
    """First token whose content begins at `char` or later, but never one behind the text's first."""
    contents = filled.content_starts(0, filled.start)
    special = np.asarray(filled.encoding.special_tokens_mask[: filled.start], dtype=np.bool_)
    behind = np.flatnonzero((contents >= char) & ~special)
    return int(behind[0]) if len(behind) else filled.start
