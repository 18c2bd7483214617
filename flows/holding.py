"""Which feature store of a home holds an array of some texts."""

from collections.abc import Sequence
from pathlib import Path

from permafrost.stages.extraction.capture import ArrayName
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.features.layout import SPAN, TEXT_OF_TOKEN, TOKEN_IDS
from permafrost.storage.features.store import FeatureStore, all_stores
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import public_name

_OF_TOKENS = tuple(spec.name for spec in (TOKEN_IDS, SPAN, TEXT_OF_TOKEN))
"""Arrays of every store."""


def holding_store(
    home: Path, array: str, texts: Sequence[str], digests: Sequence[str], store: str | None
) -> FeatureStore:
    """The feature store that holds an array of these texts.

    Raises:
        NotFoundError: none does.
        InputError: several do, or it is no name of an array.
    """
    if not isinstance(array, str):
        raise InputError(
            f"array is {quoted(array)}, of type {type(array).__name__}; give the name of an array, such as "
            "'hidden/6'"
        )
    if array not in _OF_TOKENS:
        _require_captured(array)
    stores = [s for s in all_stores(home) if s.store_id.startswith(store or "")]
    beyond = bool(stores) and all(_is_beyond_blocks(array, s) for s in stores)
    if beyond and not any(_holds(s, array, digests) for s in stores):
        deepest = max(stores, key=lambda s: s.record.sizes.n_layers)
        kind, last = array.rpartition("/")[0], deepest.record.sizes.n_layers
        raise NotFoundError(
            f"there can be no {array} in the store {deepest.store_id[:12]}, whose backbone has {last} "
            f"blocks; {kind}/{last} is the last that can be extracted"
        )
    if len(stores) == 1:
        return stores[0]  # reading it raises an error that says what is missing
    holding = [s for s in stores if _holds(s, array, digests)]
    if len(holding) > 1:
        ids = ", ".join(s.store_id[:12] for s in holding)
        raise InputError(
            f"{len(holding)} feature stores hold {array} of these texts; give store= one of {ids}"
        )
    if not holding:
        named = "" if store is None else f" whose id begins with {quoted(store)}"
        lacking = [_lacking(s, array, texts, digests) for s in stores]
        nearest = min(lacking, default=(0, ""))[1]
        raise NotFoundError(
            f"none of {len(stores)} feature stores{named} under {public_name(home)} holds "
            f"{array} of all {len(digests)} texts{nearest}; extract them first"
        )
    return holding[0]


def _require_captured(array: str) -> None:
    try:
        ArrayName.parse(array)
    except InputError as error:
        raise InputError(f"{error}; every store has {', '.join(_OF_TOKENS)} besides") from None


def _is_beyond_blocks(array: str, store: FeatureStore) -> bool:
    index = array.rpartition("/")[2]
    return index.isdecimal() and int(index) > store.record.sizes.n_layers


def _holds(store: FeatureStore, array: str, digests: Sequence[str]) -> bool:
    segments = set(store.locate(digests, [array]).segment.tolist())
    return -1 not in segments and all(array in store.committed(s) for s in segments)


def _lacking(
    store: FeatureStore, array: str, texts: Sequence[str], digests: Sequence[str]
) -> tuple[int, str]:
    """How many of the texts lack an array in a store, and that in words, with the first of them."""
    segments = store.locate(digests, [array]).segment.tolist()
    lacking = [i for i, s in enumerate(segments) if s == -1 or array not in store.committed(s)]
    said = (
        f"; {store.store_id[:12]} lacks it of {len(lacking)}, such as {quoted(texts[lacking[0]])}"
    )
    return len(lacking), said
