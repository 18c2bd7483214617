"""The attention of every token of one text to every token, and how much of it goes where, block by block.

Source: HTP, figure 3, which draws the attention of the last tokens of sentences to earlier tokens. Stores
keep the row of the readout token alone, so this runs the backbone once more, on that text.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64
from numpy.typing import NDArray

from permafrost.stages.corpus.text_sample import choose_texts
from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.encoding import encode_for
from permafrost.stages.extraction.recipes.inputs import (
    OPENING,
    PLACEHOLDER,
    TEXT,
    Encoded,
    fill,
    words_around,
)
from permafrost.stages.extraction.recipes.recipe import Recipe
from permafrost.stages.extraction.recipes.sentences import sentence_of_token
from permafrost.stages.metrics.attention_map import AttentionMap
from permafrost.stages.probes.curves import Point, ProbeCurves
from permafrost.stages.sensitivity.attention_map_config import MAX_TOKENS, AttentionMapConfig
from permafrost.stages.sensitivity.mixing import Mixing, block_mixings
from permafrost.stages.sensitivity.profile import own_tokens

_NAMES = {PLACEHOLDER: "<PST>", OPENING: "<B-PST>"}


@dataclass(frozen=True)
class MappedAttention:
    """A map, and what of the attention goes where."""

    map: AttentionMap
    curves: ProbeCurves


def map_attention(
    config: AttentionMapConfig,
    backbone: Backbone,
    recipe: Recipe,
    max_length: int,
    texts: Sequence[str],
) -> MappedAttention:
    """Run one text, and keep its attention weights, averaged over heads.

    The curves, by block, are shares of attention: of the text's own tokens on the first token of the input
    and on placeholders, and of the last tokens of sentences on earlier sentences.

    Args:
        config: which text, and whose map is kept.
        backbone: what attends.
        recipe: resolved for the backbone.
        max_length: tokens per input at most, beside the config's own bound.
        texts: of the corpus, one of which is taken where the config gives none.

    Raises:
        InputError: a block that is not there, or no text long enough.
    """
    blocks = config.read_blocks(backbone.sizes)
    text = choose_texts(texts, config.sample)[0] if config.text is None else config.text
    longest = min(max_length, config.max_tokens)
    encoded = encode_for(backbone.files, recipe, backbone.tokenizer, [text], longest)
    mixings = block_mixings(backbone, encoded, recipe, backbone.sizes.n_layers)
    ids, own = encoded.token_ids[0], own_tokens(encoded, 0)
    ends = own[_sentence_ends(backbone, text, ids[own])]
    names = backbone.tokenizer.convert_ids_to_tokens([max(int(i), 0) for i in ids])
    kept = AttentionMap(
        tuple(_NAMES.get(int(i), name) for i, name in zip(ids, names, strict=True)),
        tuple(ends.tolist()),
        tuple(np.flatnonzero(ids < 0).tolist()),
        {block: mixings[block - 1].astype(np.float32) for block in blocks},
    )
    return MappedAttention(kept, ProbeCurves("block", tuple(_points(mixings, encoded, own, ends))))


def _sentence_ends(
    backbone: Backbone, text: str, own_ids: NDArray[np.int32]
) -> Int64[np.ndarray, " n"]:
    """Places of the last tokens of sentences among the text's own tokens.

    None where the words around the text change its tokens.
    """
    (alone,) = fill(words_around(TEXT, TEXT), backbone.tokenizer, [text], 4 * MAX_TOKENS)
    ids = np.asarray(alone.encoding.ids)[alone.start : alone.end]
    # A word before the text may change its first token, from one without a space to one with it.
    if not np.array_equal(ids[1 : len(own_ids)], own_ids[1:]):
        return np.zeros(0, dtype=np.int64)
    sentences = sentence_of_token(alone)
    ends = np.flatnonzero(np.append(np.diff(sentences) > 0, True))
    return ends[ends < len(own_ids)]


def _points(
    mixings: Sequence[Mixing], encoded: Encoded, own: NDArray[np.int64], ends: NDArray[np.int64]
) -> Iterator[Point]:
    ids = encoded.token_ids[0]
    earlier_TT = _earlier_sentences(len(ids), own, ends)
    asking = ends[1:]
    for block, weights in enumerate(mixings, start=1):
        shares = {"own tokens on the first token": weights[own, 0].mean()}
        if (ids < 0).any():
            shares["own tokens on placeholders"] = weights[own][:, ids < 0].sum(axis=1).mean()
        if len(asking):
            kept = np.where(earlier_TT, weights, 0)
            shares["ends of sentences on earlier sentences"] = kept[asking].sum(axis=1).mean()
        for measure, share in shares.items():
            yield Point(f"attention of {measure}", "share", float(block), str(block), float(share))


def _earlier_sentences(
    n: int, own: NDArray[np.int64], ends: NDArray[np.int64]
) -> Bool[np.ndarray, "t t"]:
    """Whether a key is an own token of an earlier sentence than the query."""
    sentence = np.searchsorted(ends, np.arange(n))
    is_own = np.isin(np.arange(n), own)
    return is_own[None] & (sentence[None] < sentence[:, None])
