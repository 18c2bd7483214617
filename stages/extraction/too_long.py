"""Texts that are longer than max_length: which they are, and stopping because of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool

from stages.extraction.measuring import measure
from stages.extraction.recipes import encode
from stages.extraction.target import ExtractTarget
from storage.errors import InputError
from storage.features.record import has_record
from storage.features.store import FeatureStore, Locations, store_folder
from storage.quoting import quoted

_NO_LIMIT = 1 << 40


def stored_as_cut(store: FeatureStore, where: Locations) -> Bool[np.ndarray, " n"]:
    """Whether each located text is stored without its end; False for texts that are not stored."""
    cut = np.zeros(len(where.segment), dtype=np.bool_)
    size = store.record.axes.segment_texts
    for number in np.unique(where.segment[where.segment >= 0]).tolist():
        flags = store.segment(number).table.column("truncated").to_numpy(zero_copy_only=False)
        here = where.segment == number
        cut[here] = flags[where.text_row[here] - number * size]
    return cut


def refuse_too_long(
    target: ExtractTarget,
    home: Path,
    texts: Sequence[str],
    digests: Sequence[str],
    block_texts: int,
) -> None:
    """Stop if a text does not fit; writes nothing. Texts that are new are tokenised for this.

    Args:
        target: resolved identity and arrays.
        home: where feature stores lie.
        texts: unique texts.
        digests: their content digests, same order.
        block_texts: texts tokenised at a time.

    Raises:
        InputError: a text is longer than max_length, or is stored without its end.
    """
    cut, new = np.zeros(len(texts), dtype=np.bool_), np.arange(len(texts))
    root = store_folder(home, target.identity.store_id)
    if has_record(root):
        store = FeatureStore.open(root, expect=target.identity)
        where = store.locate(digests)
        cut, new = stored_as_cut(store, where), np.flatnonzero(where.segment < 0)
    for at in range(0, len(new), block_texts):
        members = new[at : at + block_texts]
        chosen = [texts[int(i)] for i in members]
        cut[members] = measure(target, chosen).truncated
    if not cut.any():
        return
    first = int(np.argmax(cut))
    whole = encode(target.recipe, target.tokenizer, [texts[first]], _NO_LIMIT)
    raise InputError(
        f"{int(cut.sum()):,} of the {len(texts):,} texts asked for are longer than max_length, which is "
        f"{target.max_length} tokens; the first is text {first} ({quoted(texts[first])}) with "
        f"{int(whole.token_ids.lengths[0]):,} tokens under this recipe. Nothing was written, as too_long is "
        f"'refuse'; split or leave out such texts, use a larger max_length, or set too_long to 'cut'"
    )
