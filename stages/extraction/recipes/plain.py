"""The text as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from permafrost.stages.extraction.recipes.inputs import (
    TEXT,
    Encoded,
    TextInput,
    UnreadableTextError,
    between,
    overlapping,
    pack,
    require_own_tokens,
    tokenise,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import transformers
    from tokenizers import Encoding


class PlainRecipe(Recipe):
    """The text as it is, with the special tokens that the tokenizer adds by itself."""

    later_fields: ClassVar[frozenset[str]] = Recipe.later_fields | {
        *("bos", "instruction_words", "end"),
    }

    kind: Literal["plain"] = "plain"
    specials: Literal["include", "exclude"] = "include"
    """Whether the added special tokens are in the span, as in sentence-transformers and the papers."""
    bos: Literal["tokenizer", "omit", "added"] = "tokenizer"
    """`omit` leaves out the special token that the tokenizer puts first ([CLS] in an encoder): its states
    are often many times larger than all others and then dominate a mean. `added` puts the tokenizer's
    beginning-of-text token (bos) before the text where the tokenizer puts none, as transformer_lens does
    (FREEZE!'s notebooks for GPT-2). Like other special tokens it is never cut."""
    end: Literal["tokenizer", "added"] = "tokenizer"
    """`added` puts the tokenizer's end token (eos) after the text where the tokenizer puts none, as models
    that are read at `</s>` need it (E5-Mistral, GT2VEC). Like other special tokens it is never cut."""
    instruction_words: Literal["exclude", "include"] = "exclude"
    """Whether the words of an instruction are in the span, as when sentence-transformers pools over a
    prompt. If they are not, the span begins with the text itself, so that a [CLS] or BOS before them is left
    out too, as in sentence-transformers with `include_prompt=False`."""

    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Truncates the tokens of a text that is too long on the right, as transformers does unless a
        tokenizer's `truncation_side` is left; the tokens of an instruction stay."""
        words = words_around(self.instruction, TEXT)
        encodings = tokenise(tokenizer, [text.join(words) for text in texts])
        bos, end = self._bos_token(tokenizer), self._end_token(tokenizer)
        return pack(
            [
                self._input(i, text, len(words[0]), encoding, max_length, bos, end)
                for i, (text, encoding) in enumerate(zip(texts, encodings, strict=True))
            ]
        )

    def _bos_token(self, tokenizer: transformers.PreTrainedTokenizerBase) -> int | None:
        if self.bos != "added":
            return None
        if not isinstance(tokenizer.bos_token_id, int):
            raise InputError(
                "the recipe plain with bos: added puts a beginning-of-text token before the text, but the "
                f"tokenizer {type(tokenizer).__name__} names none (bos_token); leave 'bos' out"
            )
        return tokenizer.bos_token_id

    def _end_token(self, tokenizer: transformers.PreTrainedTokenizerBase) -> int | None:
        if self.end == "tokenizer" or _ends_texts(tokenizer):
            return None
        if not isinstance(tokenizer.eos_token_id, int):
            raise InputError(
                "the recipe plain with end: added puts an end token after the text, but the tokenizer "
                f"{type(tokenizer).__name__} names none (eos_token); leave 'end' out"
            )
        return tokenizer.eos_token_id

    def _input(
        self,
        i: int,
        text: str,
        first_char: int,
        encoding: Encoding,
        max_length: int,
        bos_token: int | None,
        end_token: int | None,
    ) -> TextInput:
        ids = np.asarray(encoding.ids)
        special = np.asarray(encoding.special_tokens_mask, dtype=np.bool_)
        n_before = 0
        if bos_token is not None and not special[:1].any():
            ids, special, n_before = np.insert(ids, 0, bos_token), np.insert(special, 0, True), 1
        if end_token is not None:
            ids, special = np.append(ids, end_token), np.append(special, True)
        skipped = int(self.bos == "omit" and bool(special[:1].all()))
        (ordinary,) = np.nonzero(~special)
        start, end = (int(ordinary[0]), int(ordinary[-1]) + 1) if len(ordinary) else (0, 0)
        if self.instruction != TEXT:
            start, end = overlapping(encoding, first_char, len(text))
            start, end = start + n_before, end + n_before
        require_own_tokens(i, text, end - start)
        excess = max(len(ids) - skipped - max_length, 0)
        if excess and end - excess <= start:
            others = "special tokens"
            if self.instruction != TEXT:
                others += f" and words of the instruction {quoted(self.instruction)}"
            raise UnreadableTextError(
                i,
                f"max_length is {max_length}, but ",
                f" gets {len(ids) - skipped - (end - start)} {others}, which leaves no room for the text; "
                "use a larger max_length",
            )
        kept = np.r_[skipped : end - excess, end : len(ids)]
        ordinary, start, end = ordinary - skipped, start - skipped, end - excess - skipped
        words = (int(ordinary[0]), int(ordinary[-1]) + 1 - excess)
        span = self._span(special[kept], words, (start, end))
        return TextInput(ids[kept], span, start, end, excess > 0)

    def _span(
        self, special: NDArray[np.bool_], words: tuple[int, int], text: tuple[int, int]
    ) -> NDArray[np.bool_]:
        """The span of an input, from the ranges of the instruction with the text and of the text alone."""
        n_tokens = len(special)
        if self.instruction == TEXT or self.instruction_words == "include":
            is_all = self.specials == "include"
            return np.ones(n_tokens, dtype=np.bool_) if is_all else between(*words, n_tokens)
        span = between(*text, n_tokens)
        if self.specials == "include":
            span[text[1] :] |= special[text[1] :]
        return span


def _ends_texts(tokenizer: transformers.PreTrainedTokenizerBase) -> bool:
    """Whether it ends a text itself, with a special token, be it eos or another such as BERT's [SEP]."""
    (encoding,) = tokenise(tokenizer, ["a"])
    return bool(encoding.special_tokens_mask[-1])
