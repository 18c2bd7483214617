"""Hierarchical token prepending: placeholders for every block of a text, before the block and the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from permafrost.stages.bounds import MAX_TEXTS
from permafrost.stages.extraction.recipes.inputs import (
    OPENING,
    PLACEHOLDER,
    TEXT,
    Encoded,
    Filled,
    TextInput,
    between,
    fill,
    pack,
    require_slots,
    words_around,
)
from permafrost.stages.extraction.recipes.prepending import RewiredRecipe
from permafrost.stages.extraction.recipes.sentences import sentence_of_token

if TYPE_CHECKING:
    import transformers


class HtpRecipe(RewiredRecipe):
    """HTP (section 4, Eq. 3): the end of each block of the text is shown to tokens before it.

    Each block of sentences has a local placeholder directly before it and a global one before the whole
    text; both take over the state of the block's last token. Where we differ: the released code does not
    group sentences or tokens; it splits sentences with spaCy; and it truncates the text before it adds the
    global placeholders, so that inputs become too long and silently lose sentences.
    """

    kind: Literal["htp"] = "htp"
    block: Literal["sentences", "tokens"] = "sentences"
    """What a block of the text is: some sentences, or some tokens."""
    size: Annotated[int, Field(ge=1, le=MAX_TEXTS)] | Literal["per_sentence"] = 1
    """Sentences, or tokens, per block. `per_sentence`, for blocks of tokens: as many as a sentence of the
    same text has on average, rounded down (figure 8); of what is kept of a text that is cut."""
    placement: Literal["both", "local", "global"] = "both"
    """Where placeholders are: before each block (`local`), before the whole text (`global`), or both."""
    template: str = TEXT
    """Contains {text} exactly once; the words around it are not in the span."""
    last_source: Literal["text_end", "after_text"] = "text_end"
    """Whose state stands for the last block: its last token, as in the paper, or the token right after the
    text, as in the released code (the last token if there is none after it)."""
    span_placeholders: Literal["exclude", "include", "all"] = "exclude"
    """Whether poolings run over placeholders too: over none of them, as in the released code; over the local
    ones (`include`), as there without global ones; or over all, as section 4.4 reads, where the mean leaves
    nothing out."""

    @model_validator(mode="after")
    def _mean_sentences_are_blocks_of_tokens(self) -> HtpRecipe:
        if self.size == "per_sentence" and self.block != "tokens":
            raise ValueError(
                "size is 'per_sentence', a number of tokens, but block is 'sentences'; write block: tokens"
            )
        return self

    @field_validator("template")
    @classmethod
    def _has_one_slot(cls, template: str) -> str:
        return require_slots(template, TEXT)

    def encoded(
        self,
        tokenizer: transformers.PreTrainedTokenizerBase,
        texts: Sequence[str],
        max_length: int,
    ) -> Encoded:
        """Cuts the text together with its placeholders, so that every block keeps its own."""
        words = words_around(self.instructed(self.template), TEXT)
        filled = fill(words, tokenizer, texts, max_length, self._needed)
        return pack([self._input(x) for x in filled])

    def _needed(self, filled: Filled) -> NDArray[np.int64]:
        n_kinds = 2 if self.placement == "both" else 1
        return n_kinds * (self._blocks(filled) + 1)

    def _blocks(self, filled: Filled) -> NDArray[np.int64]:
        """The block that each of the text's tokens is in, from 0."""
        if self.size == "per_sentence":
            n_sentences = int(sentence_of_token(filled)[-1]) + 1
            return np.arange(filled.n_own) // (filled.n_own // n_sentences)
        if self.block == "tokens":
            return np.arange(filled.n_own) // self.size
        return sentence_of_token(filled) // self.size

    def _input(self, filled: Filled) -> TextInput:
        blocks = self._blocks(filled)
        n_blocks = int(blocks[-1]) + 1
        n_openings = 0 if self.placement == "local" else n_blocks
        region = filled.start + n_openings
        ids = np.asarray(filled.encoding.ids)
        own, firsts = ids[filled.start : filled.end], np.searchsorted(blocks, np.arange(n_blocks))
        positions = region + np.arange(len(own))
        locals_ = np.empty(0, dtype=np.int64)
        if self.placement != "global":
            own = np.insert(own, firsts, PLACEHOLDER)
            positions += blocks + 1
            locals_ = positions[firsts] - 1
        openings = np.full(n_openings, OPENING)
        ids = np.concatenate([ids[: filled.start], openings, own, ids[filled.end :]])
        end = region + len(own)
        span = np.isin(np.arange(len(ids)), positions)
        if self.span_placeholders != "exclude":
            first = region if self.span_placeholders == "include" else filled.start
            span |= between(first, end, len(ids))
        targets = [filled.start + np.arange(n_openings), locals_]
        return TextInput(
            ids=ids,
            span=span,
            start=region,
            end=end,
            truncated=filled.truncated,
            copies=_copies(self._sources(positions, firsts, len(ids)), targets),
        )

    def _sources(
        self, positions: NDArray[np.int64], firsts: NDArray[np.int64], n_tokens: int
    ) -> NDArray[np.int64]:
        """For each block the position of the token whose state stands for it."""
        sources = positions[np.append(firsts[1:], len(positions)) - 1]
        if self.last_source == "after_text":
            sources[-1] = min(sources[-1] + 1, n_tokens - 1)
        return sources


def _copies(sources: NDArray[np.int64], targets: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Rows of [source, target] for every non-empty group of targets."""
    rows = [np.stack([sources, group], axis=1) for group in targets if len(group)]
    return np.concatenate(rows)
