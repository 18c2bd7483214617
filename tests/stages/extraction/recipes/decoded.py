"""What tokens say, by the tokenizer's own decoder."""

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase


def said(tokenizer: PreTrainedTokenizerBase, ids: NDArray[np.int32]) -> str:
    """Text of the ids that a vocabulary has, special tokens left out."""
    text = tokenizer.decode(ids[ids >= 0].tolist(), skip_special_tokens=True)
    assert isinstance(text, str)
    return text
