"""The Zarr groups of a store: what another program needs to know of it, and the metadata of all its arrays.

Every group has the consolidated metadata of what is below it, so that a reader opens the store with one read.
They follow the arrays: written after them, and a writer that was killed in between leaves them behind what is
there, never ahead of it.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

from permafrost.storage.durable import holds, json_bytes, read_json, rewrite
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.layout import ZARR_GROUP, earlier_metadata, in_order
from permafrost.storage.features.projections import is_metadata
from permafrost.storage.features.record import StoreRecord
from permafrost.storage.features.store import ZARR_JSON, FeatureStore
from permafrost.storage.keys import to_plain
from permafrost.storage.replica import public_name

COMPLETE = "complete"
"""Attribute of the root: for each array, whether its cell in each segment is complete."""
PROJECTIONS = "projections/"
_CONSOLIDATED = "consolidated_metadata"
_AXES = {
    "token": "slots of tokens; a text has n_tokens of them from token_start on (segments/*.parquet)",
    "text": "rows of texts: text_row in segments/*.parquet, text_of_token for each token",
    "d_model": "residual stream of the backbone",
    "d_value": "value projection of a block, all KV heads concatenated",
    "attn_head": "attention heads of a block",
    "d_heads": "input of a block's output projection",
}


def write_groups(
    store: FeatureStore,
    without: Collection[str] = (),
    check: Callable[[], None] = lambda: None,
) -> None:
    """Bring the groups up to date with arrays and receipts; call it as the lease holder.

    Args:
        store: whose groups.
        without: arrays that are about to be dropped, and are no longer said to be complete.
        check: called before each group is written; what it raises ends the writing.
    """
    documents = dict(_documents(store))
    complete = {
        array: [is_complete and array not in without for is_complete in cells]
        for array, cells in completeness(store).items()
    }
    for group in sorted({p for name in documents for p in PurePosixPath(name).parents}):
        content = json_bytes(_group(store, group, documents, complete))
        path = store.zarr_path / group / ZARR_JSON
        if not holds(path, content):
            check()
            rewrite(path, content)


def completeness(store: FeatureStore) -> dict[str, list[bool]]:
    """For each array, whether its cell in each segment is complete; also for those that were dropped."""
    by_segment = store.committed_in(store.tables())
    arrays = in_order(set(store.declared()).union(*by_segment.values()))
    n = store.n_slots()
    return {a: [a in by_segment.get(s, ()) for s in range(n)] for a in arrays}


def group_problem(store: FeatureStore, path: Path) -> str | None:
    """What is wrong with the metadata of a group; None if nothing is.

    A group of an earlier version has no attributes and nothing consolidated.
    """
    name = public_name(path)
    try:
        found = read_json(path)
    except (CorruptDataError, FileNotFoundError) as error:
        return f"{name} is not a Zarr group: {error}"
    group = PurePosixPath(path.parent.relative_to(store.zarr_path).as_posix())
    attributes, consolidated = found.get("attributes"), found.get(_CONSOLIDATED)
    if {**found, "attributes": {}, _CONSOLIDATED: None} != {**ZARR_GROUP, _CONSOLIDATED: None}:
        return f"{name} is not a Zarr group"
    wanted = _attributes(store.record, {}) if group == PurePosixPath() else {}
    is_earlier = attributes == {} and consolidated is None
    named = _object(attributes)
    complete = None if named is None else named.pop(COMPLETE, {})
    if not is_earlier and (named is None or {**named, COMPLETE: {}} != {COMPLETE: {}, **wanted}):
        return f"{name} has other attributes than this store"
    if (wrong := _wrongly_complete(store, complete or {})) is not None:
        return f"{name} says that {wrong}"
    if consolidated is not None and not _fits(store, group, consolidated):
        return f"{name} does not describe the arrays that are there"
    return None


def _wrongly_complete(store: FeatureStore, complete: Any) -> str | None:
    """What attributes say is complete and is not."""
    arrays = _object(complete)
    if arrays is None:
        return "nothing of arrays"
    for array, cells in arrays.items():
        of_no_kind: list[Any] = [None]
        flags = cast(list[Any], cells) if isinstance(cells, list) else of_no_kind
        for segment, is_complete in enumerate(flags):
            if is_complete is False or (is_complete is True and array in store.committed(segment)):
                continue
            return f"{array} of segment {segment} is complete, and it is not there"
    return None


def _fits(store: FeatureStore, group: PurePosixPath, consolidated: Any) -> bool:
    """Whether consolidated metadata is that of the arrays, or was before they grew."""
    whole_document = _object(consolidated) or {}
    documents = _object(whole_document.get("metadata"))
    if documents is None:
        return False
    groups = {p.as_posix() for name in documents for p in PurePosixPath(name).parents}
    for name, document in documents.items():
        whole = (group / name).as_posix()
        # Not by what lies there: that may be the damage, of which others tell.
        if document == _nested_group():
            is_right = name in groups
        elif whole.startswith(PROJECTIONS):
            is_right = is_metadata(document)
        else:
            is_right = document in _of_any_size(store, whole)
        if not is_right:
            return False
    return {**whole_document, "metadata": {}} == _consolidated({})


def _object(value: Any) -> dict[str, Any] | None:
    """A JSON object; None for anything else."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else None


def _of_any_size(store: FeatureStore, array: str) -> Iterable[dict[str, Any]]:
    """The metadata of an array at every size that the store had; none for what does not grow with it."""
    with contextlib.suppress(NotFoundError):
        of_sizes = [store.array_metadata(array, n) for n in range(store.n_slots() + 1)]
        return [*of_sizes, *map(earlier_metadata, of_sizes)]
    return ()


def _documents(store: FeatureStore) -> Iterable[tuple[str, dict[str, Any]]]:
    """The metadata of every array that is there, by name."""
    paths = store.metadata_paths()
    for name in in_order(paths):
        try:
            document = read_json(paths[name])
        except (CorruptDataError, FileNotFoundError):
            continue  # told of, and written again, by those who check arrays
        if document.get("node_type") == "array":
            yield name, document


def _group(
    store: FeatureStore,
    group: PurePosixPath,
    documents: Mapping[str, dict[str, Any]],
    complete: Mapping[str, Sequence[bool]],
) -> dict[str, Any]:
    is_root = group == PurePosixPath()
    inside = {
        PurePosixPath(name).relative_to(group).as_posix(): document
        for name, document in documents.items()
        if is_root or group in PurePosixPath(name).parents
    }
    groups = {p.as_posix() for name in inside for p in PurePosixPath(name).parents} - {"."}
    entries = {**dict.fromkeys(groups, _nested_group()), **inside}
    return {
        **ZARR_GROUP,
        "attributes": _attributes(store.record, complete) if is_root else {},
        _CONSOLIDATED: _consolidated({name: entries[name] for name in in_order(entries)}),
    }


def _nested_group() -> dict[str, Any]:
    return {**ZARR_GROUP, _CONSOLIDATED: _consolidated({})}


def _consolidated(metadata: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "inline", "must_understand": False, "metadata": metadata}


def _attributes(record: StoreRecord, complete: Mapping[str, Sequence[bool]]) -> dict[str, Any]:
    """What the numbers are, for programs that do not read `store.json`."""
    identity: dict[str, Any] = to_plain(record.identity)
    return {
        "format": record.format,
        "store_id": record.store_id,
        "backbone": dict(record.backbone),
        **identity,
        **record.axes.model_dump(),
        "axes": _AXES,
        COMPLETE: {array: list(cells) for array, cells in complete.items()},
    }
