"""Where sentences begin."""

import blingfire
import numpy as np
from jaxtyping import Int64


def sentence_starts(text: str) -> Int64[np.ndarray, " n_sentences"]:
    """Characters at which the sentences of a text begin, found by blingfire's rules.

    HTP's released code uses spaCy's parser, and appends a full stop to a sentence without one; here the
    text stays as it is.
    """
    _, offsets = blingfire.text_to_sentences_and_offsets(text)
    return np.asarray([start for start, _ in offsets], dtype=np.int64)
