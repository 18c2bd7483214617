"""Stored vectors of tokens and the tokens that follow them, by split.

Axes: N tokens, D columns.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc
from jaxtyping import Float32, Int64
from numpy.typing import NDArray

from permafrost.stages.corpus.columns import advice_on_splits
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.extraction.recipes.inputs import Encoded
from permafrost.stages.token_prediction.targets import NOWHERE, following_tokens
from permafrost.storage.errors import InputError
from permafrost.storage.features.layout import TOKEN_IDS
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.quoting import quoted
from permafrost.storage.ragged import Ragged
from permafrost.storage.readers import open_reader

SPLITS = ("train", "dev", "test")
_TEXTS_AT_A_TIME = 256


@dataclass(frozen=True)
class SplitTokens:
    """Tokens of one split whose following token is known."""

    digests: tuple[str, ...]
    """Texts that they are of."""
    asked: NDArray[np.bool_]
    """Which tokens of these inputs, one input after the other."""
    targets: Int64[np.ndarray, " n"]
    """The token that follows, of those that are asked."""

    def rows(
        self, features: StoredFeatures, array: str, made_of: Callable[[Ragged], NDArray[np.float32]]
    ) -> Float32[np.ndarray, "n d"]:
        """The vectors of these tokens.

        Args:
            features: where the rows of whole inputs are read.
            array: its name in the store.
            made_of: makes a vector of every token from the rows of inputs; `each_token` or `prefix_means`.
        """
        reader = open_reader(
            features.store,
            array,
            self.digests,
            budget_bytes=features.budget_bytes,
            tokens="all",
        )
        parts, at = list[NDArray[np.float32]](), 0
        for _, batch in reader.in_order(_TEXTS_AT_A_TIME):
            n = len(batch.data)
            parts.append(made_of(batch)[self.asked[at : at + n]])
            at += n
        return np.concatenate(parts)


def each_token(rows: Ragged) -> NDArray[np.float32]:
    """Of every token its own row."""
    return rows.data


def prefix_means(rows: Ragged) -> NDArray[np.float32]:
    """Of every token the mean of the rows of its input up to it; summed in float64."""
    parts = [
        part.cumsum(axis=0, dtype=np.float64) / np.arange(1, len(part) + 1)[:, None]
        for part in rows
    ]
    return np.concatenate(parts).astype(np.float32)


def split_tokens(
    features: StoredFeatures, corpus: Corpus, offset: int, n_tokens: int, seed: int
) -> dict[str, SplitTokens]:
    """Tokens of whole texts of each split until there are `n_tokens`, the last text in part.

    A seeded hash orders the texts. A text of several splits counts for the first of train, dev and test,
    so that nothing is tested on that was trained on.

    Raises:
        InputError: a split is missing, or has no token that another one follows at the offset.
    """
    chosen: dict[str, SplitTokens] = {}
    for split, indices in _texts_by_split(corpus).items():
        order = _ordered(indices, corpus, seed)
        digests, store = [corpus.digests[i] for i in order], features.store
        tokens = _tokens(store, digests, offset, n_tokens)
        if not len(tokens.targets):
            is_cut = store.locate(digests).truncated.any()
            raise _too_short(split, offset, store.record.identity.max_length if is_cut else None)
        chosen[split] = tokens
    return chosen


def require_tokens(
    corpus: Corpus,
    encode: Callable[[Sequence[str]], Encoded],
    offset: int,
    seed: int,
    max_length: int,
) -> None:
    """Check that `split_tokens` will find a token in every split; most often its first texts tell.

    Args:
        corpus: the texts.
        encode: makes the input of texts.
        offset: of the tokens that are asked for.
        seed: decides about the order of the texts.
        max_length: tokens per input at which texts are cut.

    Raises:
        InputError: a split is missing, or has no token that another one follows at the offset.
    """
    for split, indices in _texts_by_split(corpus).items():
        order = _ordered(indices, corpus, seed)
        blocks = (order[i : i + _TEXTS_AT_A_TIME] for i in range(0, len(order), _TEXTS_AT_A_TIME))
        is_cut = False
        for inputs in (encode([corpus.texts[i] for i in block]) for block in blocks):
            if _n_asked(inputs.span_start, inputs.span_end, offset).any():
                break
            is_cut |= bool(inputs.truncated.any())
        else:
            raise _too_short(split, offset, max_length if is_cut else None)


def _ordered(indices: Sequence[int], corpus: Corpus, seed: int) -> list[int]:
    return sorted(indices, key=lambda i: _hash(seed, corpus.digests[i]))


def _too_short(split: str, offset: int, cut_at: int | None) -> InputError:
    within, longer = "", "longer texts"
    if cut_at is not None:
        within, longer = f" within max_length {cut_at}", "a larger max_length"
    return InputError(
        f"no text of the split {quoted(split)} has a token {offset} tokens after another one{within}; give "
        f"{longer} or a smaller offset"
    )


def _n_asked(start: NDArray[np.int64], end: NDArray[np.int64], offset: int) -> NDArray[np.int64]:
    """How many tokens of each input are followed by another one."""
    return np.maximum(end - offset - np.maximum(start - 1, 0), 0)


def require_splits(corpus: Corpus) -> None:
    """Check that the corpus has the splits that a next-token probe reads.

    Raises:
        InputError: one is missing.
    """
    if missing := [split for split in SPLITS if split not in corpus.splits]:
        raise InputError(
            f"a next-token probe is trained on train, stopped on dev and scored on test, but the corpus has "
            f"no {quoted(missing[0])}, only {', '.join(corpus.splits)}. {advice_on_splits(missing)}"
        )


def _texts_by_split(corpus: Corpus) -> dict[str, list[int]]:
    require_splits(corpus)
    owner: dict[int, str] = {}
    for split in SPLITS:
        examples = corpus.split(split)
        for column in ("text", "text_pair"):
            for text in pc.unique(examples.column(column).drop_null()).to_pylist():
                owner.setdefault(text, split)
    return {s: [text for text, split in owner.items() if split == s] for s in SPLITS}


def _tokens(store: FeatureStore, digests: Sequence[str], offset: int, n_tokens: int) -> SplitTokens:
    start, end = _own_tokens(store, digests)
    n_asked = _n_asked(start, end, offset)
    n_texts = int(np.searchsorted(np.cumsum(n_asked), n_tokens)) + 1
    kept, start, end = tuple(digests[:n_texts]), start[:n_texts], end[:n_texts]
    if not kept:
        return SplitTokens((), np.zeros(0, np.bool_), np.zeros(0, np.int64))
    ids = _token_ids(store, kept)
    targets = following_tokens(ids, start, end, [offset])[:, 0]
    is_asked = targets != NOWHERE
    is_asked &= np.cumsum(is_asked) <= n_tokens
    return SplitTokens(kept, is_asked, targets[is_asked])


def _token_ids(store: FeatureStore, digests: Sequence[str]) -> Ragged:
    reader = open_reader(
        store, TOKEN_IDS.name, digests, budget_bytes=1 << 28, precision="stored", tokens="all"
    )
    inputs = [ids.reshape(-1) for _, part in reader.in_order(_TEXTS_AT_A_TIME) for ids in part]
    return Ragged.from_arrays(inputs)


def _own_tokens(
    store: FeatureStore, digests: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where the text itself starts and ends in each input."""
    where = store.locate(digests)
    bounds = np.zeros((2, len(digests)), dtype=np.int64)
    for segment in np.unique(where.segment).tolist():
        in_segment = where.segment == segment
        table = store.segment(segment).table
        rows = where.text_row[in_segment] - segment * store.record.axes.segment_texts
        for out, name in zip(bounds, ("span_start", "span_end"), strict=True):
            out[in_segment] = table.column(name).to_numpy()[rows]
    return bounds[0], bounds[1]


def _hash(seed: int, digest: str) -> str:
    return hashlib.sha256(f"{seed}:{digest}".encode()).hexdigest()
