"""Sentences of a text, and which of them each of its tokens is in."""

from __future__ import annotations

from functools import lru_cache

import blingfire
import numpy as np
from jaxtyping import Int64

from permafrost.stages.extraction.recipes.inputs import Filled

_RECENT = 512
"""Texts whose sentences are remembered: an input needs them twice, and texts are tokenised 256 together."""


def sentence_of_token(filled: Filled) -> Int64[np.ndarray, " n_own"]:
    """The sentence that each of the text's tokens is in, from 0."""
    starts = sentence_starts(filled.text) + filled.first_char
    contents = filled.content_starts(filled.start, filled.end)
    # What comes before the first sentence belongs to it. Sentences without a token do not count.
    sentences = np.maximum(np.searchsorted(starts, contents, side="right"), 1)
    return np.cumsum(np.diff(sentences, prepend=sentences[0]) > 0, dtype=np.int64)


@lru_cache(maxsize=_RECENT)
def sentence_starts(text: str) -> Int64[np.ndarray, " n_sentences"]:
    """Indices of the characters at which the sentences of a text begin, by blingfire's rules.

    HTP's released code uses spaCy's parser, and appends a full stop to a sentence without one; here the
    text stays as it is. The result is shared, and read-only.
    """
    _, offsets = blingfire.text_to_sentences_and_offsets(text)
    starts = np.asarray([start for start, _ in offsets], dtype=np.int64)
    starts.flags.writeable = False
    return starts
