"""Segment matching: does the vector of a text's first half find that of its second half?

Source: Value Aggregation, section 3.2 and figure 2 (recall at 1, 5 and 10 by layer; the mean reciprocal rank
is ours). There texts are cut at a token position drawn from the middle half: `TokenCut` of the corpus; here,
without a tokenizer, before the middle word. How ties count is not said: here against the method, so that a
layer that maps everything to one point scores 0.

Axes: P prefixes, S suffixes, D width.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pyarrow as pa
from jaxtyping import Float, Int64
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, PositiveInt

from permafrost.stages.bounds import MAX_SEED, MAX_TEXTS
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

RECALL_AT = (1, 5, 10)

_ROWS_AT_A_TIME = 1024
_ROUNDING = 1e-12
"""Cosines closer than this are tied: the rounding of equal vectors depends on the blocks."""


class SegmentSplit(BaseModel):
    """Which texts are cut in two."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_texts: int = Field(default=1000, ge=2, le=MAX_TEXTS)
    """Maximum number; chosen by a hash of seed and text, so that the order of the rows does not matter."""
    min_words: int = Field(default=64, ge=2, le=MAX_TEXTS)
    """Shorter texts are left out; words are separated by white space."""
    seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """A different seed gives a different choice."""


class SegmentMatchingConfig(SegmentSplit):
    """Which texts are cut, and how the search is scored."""

    k: tuple[PositiveInt, ...] = Field(default=RECALL_AT, min_length=1)
    """Recall among this many nearest neighbours; trivially 1 if there are no more texts than that."""


def middle_word(text: str) -> tuple[str, str]:
    """Cut before the middle word; without white space around the halves."""
    # \S+ and split() agree on white space.
    starts = [word.start() for word in re.finditer(r"\S+", text)]
    middle = starts[len(starts) // 2]
    return text[:middle].strip(), text[middle:].strip()


def split_segments(
    texts: Sequence[str],
    config: SegmentSplit,
    halves_of: Callable[[str], tuple[str, str]] = middle_word,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Cut long texts in two.

    The halves are not altered, and all of them differ: a text with a half that occurs already, or is empty,
    is left out, as it could not be told from another.

    Args:
        texts: of a corpus.
        config: which of them.
        halves_of: cuts one.

    Returns:
        prefixes and suffixes, in the order in which the texts first appear.

    Raises:
        InputError: fewer than two texts can be cut.
    """
    long = [t for t in dict.fromkeys(texts) if len(t.split()) >= config.min_words]
    seen: set[str] = set()
    chosen: dict[str, tuple[str, str]] = {}
    for text in sorted(long, key=lambda t: _hash(config.seed, t)):
        if len(chosen) == config.n_texts:
            break
        halves = halves_of(text)
        if len({*halves} - seen - {""}) == 2:
            seen.update(halves)
            chosen[text] = halves
    if len(chosen) < 2:
        raise InputError(
            f"segment matching needs two texts or more, but of {len(texts)} texts {len(chosen)} can be "
            f"cut: different from the others and of at least {config.min_words} words; lower min_words "
            "or give longer texts"
        )
    pairs = [chosen[text] for text in long if text in chosen]
    return tuple(prefix for prefix, _ in pairs), tuple(suffix for _, suffix in pairs)


def match(
    prefixes: Float[np.ndarray, "n_prefixes d_prefix"],
    suffixes: Float[np.ndarray, "n_suffixes d_suffix"],
    k: Sequence[int] = RECALL_AT,
) -> dict[str, float]:
    """`recall@k` for every k, and `mrr`, of finding a prefix's own suffix by cosine; rows i belong together.

    Raises:
        InputError: see `suffix_ranks`.
    """
    ranks = suffix_ranks(prefixes, suffixes)
    return {
        **{f"recall@{n}": float(np.mean(ranks <= n)) for n in k},
        "mrr": float(np.mean(1 / ranks)),
    }


def suffix_ranks(
    prefixes: Float[np.ndarray, "n_prefixes d_prefix"],
    suffixes: Float[np.ndarray, "n_suffixes d_suffix"],
) -> Int64[np.ndarray, " n_prefixes"]:
    """Rank (from 1) of every prefix's own suffix among all suffixes, by cosine in float64.

    Ties count against the own suffix. Memory is a few blocks, whatever the number of texts.

    Raises:
        InputError: shapes differ, there are fewer than two texts, or a vector is zero or not finite.
    """
    if prefixes.shape != suffixes.shape or len(prefixes) < 2:
        raise InputError(
            f"prefixes are {list(prefixes.shape)} and suffixes {list(suffixes.shape)}; give equally many, "
            "at least two, of the same width, from the same method"
        )
    ranks = np.zeros(len(prefixes), dtype=np.int64)
    for start in range(0, len(prefixes), _ROWS_AT_A_TIME):
        prefix_PD = _directions(prefixes, start, "prefix")
        own_P = np.einsum("pd,pd->p", prefix_PD, _directions(suffixes, start, "suffix"))
        for other in range(0, len(suffixes), _ROWS_AT_A_TIME):
            cosine_PS = prefix_PD @ _directions(suffixes, other, "suffix").T
            ahead_PS = cosine_PS >= own_P[:, None] - _ROUNDING
            ranks[start : start + _ROWS_AT_A_TIME] += ahead_PS.sum(axis=1)
    return ranks


def layer_curve(
    what: str,
    layers: Iterable[tuple[int, NDArray[np.floating], NDArray[np.floating]]],
    k: Sequence[int] = RECALL_AT,
) -> pa.Table:
    """Match layer by layer.

    Args:
        what: names the vectors, for example the method.
        layers: (layer, vectors of prefixes, vectors of suffixes); one is held at a time.
        k: see `match`.

    Returns:
        Columns what, layer, recall@k for every k, mrr, one row per layer. The paper reports a method's best
        layer.

    Raises:
        InputError: no layers; see also `suffix_ranks`.
    """
    by_layer = [(layer, match(prefixes, suffixes, k)) for layer, prefixes, suffixes in layers]
    if not by_layer:
        raise InputError(f"segment matching of {quoted(what)} got 0 layers; give it at least one")
    columns = {
        "what": pa.array([what] * len(by_layer), pa.string()),
        "layer": pa.array([layer for layer, _ in by_layer], pa.int64()),
    }
    columns |= {name: pa.array([scores[name] for _, scores in by_layer]) for name in by_layer[0][1]}
    return pa.table(columns)


def _hash(seed: int, text: str) -> str:
    return hashlib.sha256(f"{seed}:{text}".encode()).hexdigest()


def _directions(vectors: NDArray[np.floating], start: int, what: str) -> Float[np.ndarray, "p d"]:
    block = vectors[start : start + _ROWS_AT_A_TIME].astype(np.float64)
    norms = np.linalg.norm(block, axis=1, keepdims=True)
    broken = ~np.isfinite(norms[:, 0]) | (norms[:, 0] == 0)
    if broken.any():
        row = int(broken.argmax())
        raise InputError(
            f"the vector of {what} {start + row} has norm {norms[row, 0]:g}, so it has no direction; check "
            "the method that made it, or leave the text out"
        )
    return block / norms
