"""Lengths of texts under a recipe, and refusing texts that are too long."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64

from permafrost.stages.extraction.recipes import encode
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.errors import InputError
from permafrost.storage.features.record import has_record
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.quoting import quoted

_AT_A_TIME = 256
"""Texts that are tokenised together."""
_NO_LIMIT = 1 << 40


@dataclass(frozen=True)
class Measured:
    """The fields of `Encoded` that the layout of a segment needs."""

    lengths: Int64[np.ndarray, " n"]
    """Tokens of the input."""
    span_start: Int64[np.ndarray, " n"]
    span_end: Int64[np.ndarray, " n"]
    truncated: Bool[np.ndarray, " n"]


def measure(target: ExtractTarget, texts: Sequence[str]) -> Measured:
    """Tokenise texts, at least one, in groups; keeps their lengths only.

    Raises:
        InputError: a text cannot be used; the message gives its index in `texts`.
    """
    parts: list[Measured] = []
    for at in range(0, len(texts), _AT_A_TIME):
        group = texts[at : at + _AT_A_TIME]
        try:
            encoded = encode(target.recipe, target.tokenizer, group, target.max_length)
        except InputError:
            # Encode from the first text on, so that the message numbers them as the caller does.
            encode(target.recipe, target.tokenizer, texts[: at + len(group)], target.max_length)
            raise
        parts.append(
            Measured(
                encoded.token_ids.lengths, encoded.span_start, encoded.span_end, encoded.truncated
            )
        )
    columns = zip(*((p.lengths, p.span_start, p.span_end, p.truncated) for p in parts), strict=True)
    return Measured(*(np.concatenate(column) for column in columns))


def refuse_too_long(
    target: ExtractTarget,
    home: Path,
    texts: Sequence[str],
    digests: Sequence[str],
    block_texts: int,
) -> None:
    """Refuse the run if a text is longer than max_length; writes nothing. Texts not yet stored are tokenised.

    Args:
        target: resolved identity and arrays.
        home: where feature stores lie.
        texts: unique texts.
        digests: their content digests, same order.
        block_texts: texts tokenised at a time.

    Raises:
        InputError: a text is longer than max_length, or is stored truncated.
    """
    cut = np.zeros(len(texts), dtype=np.bool_)
    root = store_folder(home, target.identity.store_id)
    store = FeatureStore.open(root, expect=target.identity) if has_record(root) else None
    for at in range(0, len(texts), block_texts):
        block = slice(at, at + block_texts)
        new = np.arange(len(digests[block]))
        if store is not None:
            where = store.locate(digests[block])
            cut[block], new = where.truncated, np.flatnonzero(where.segment < 0)
        if len(new):
            cut[at + new] = measure(target, [texts[at + i] for i in new.tolist()]).truncated
    if not cut.any():
        return
    first = int(np.argmax(cut))
    whole = encode(target.recipe, target.tokenizer, [texts[first]], _NO_LIMIT)
    raise InputError(
        f"{int(cut.sum()):,} of the {len(texts):,} texts are longer than max_length, which is "
        f"{target.max_length} tokens; the first is text {first} ({quoted(texts[first])}) with "
        f"{int(whole.token_ids.lengths[0]):,} tokens under this recipe. Nothing was written, as too_long is "
        f"'refuse'; split or leave out such texts, use a larger max_length, or set too_long to 'cut'"
    )
