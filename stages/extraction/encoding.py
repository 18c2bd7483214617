"""Model input of texts for one backbone: of tokens that it has embeddings of."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from permafrost.stages.extraction.files import BackboneFiles
from permafrost.stages.extraction.recipes.inputs import Encoded, UnreadableTextError
from permafrost.stages.extraction.recipes.recipe import Recipe, encode
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    import transformers


def encode_for(
    files: BackboneFiles,
    recipe: Recipe,
    tokenizer: transformers.PreTrainedTokenizerBase,
    texts: Sequence[str],
    max_length: int,
) -> Encoded:
    """Model input of texts for the backbone of these files; see `encode` for the rest.

    Raises:
        InputError: as `encode`; or a text has a token that the tokenizer knows and the model does not.
    """
    encoded = encode(recipe, tokenizer, texts, max_length)
    ids, n_known = encoded.token_ids, _n_embedded(files)
    if ids.data.max(initial=0) >= n_known:
        at = int(np.argmax(ids.data >= n_known))
        row, token = int(np.searchsorted(ids.offsets, at, side="right")) - 1, int(ids.data[at])
        name = tokenizer.convert_ids_to_tokens(token)
        raise UnreadableTextError(
            row,
            "",
            f" ({quoted(texts[row])}) has the token {quoted(name)}, whose id is {token:,}, and the "
            f"model has embeddings of {n_known:,} tokens: it was added to the tokenizer alone. Take it "
            "out of the text, or resize the model's embeddings and save it again",
        )
    return encoded


@lru_cache(maxsize=4)
def _n_embedded(files: BackboneFiles) -> int:
    from permafrost.stages.extraction.backbone import vocabulary_size

    return vocabulary_size(files)
