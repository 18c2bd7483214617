"""Texts that are longer than max_length: which they are, and stopping because of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from permafrost.stages.extraction.measuring import measure
from permafrost.stages.extraction.recipes import encode
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.storage.errors import InputError
from permafrost.storage.features.record import has_record
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.quoting import quoted

_NO_LIMIT = 1 << 40


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
        f"{int(cut.sum()):,} of the {len(texts):,} texts asked for are longer than max_length, which is "
        f"{target.max_length} tokens; the first is text {first} ({quoted(texts[first])}) with "
        f"{int(whole.token_ids.lengths[0]):,} tokens under this recipe. Nothing was written, as too_long is "
        f"'refuse'; split or leave out such texts, use a larger max_length, or set too_long to 'cut'"
    )
