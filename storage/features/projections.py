"""Output projections of a backbone, stored with its features so that aligned aggregations never load it."""

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from permafrost.storage.durable import (
    is_there,
    json_bytes,
    read_json,
    read_whole,
    remove,
    rewrite,
    write_durably,
    write_json,
)
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.layout import ZARR_GROUP
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.keys import digest
from permafrost.storage.replica import fetch_missing, public_name


def _paths(store: FeatureStore, block: int) -> tuple[Path, Path]:
    root = store.zarr_path / "projections"
    return root / "o_proj" / str(block), root / "o_proj_bias" / str(block)


def has_projection(store: FeatureStore, block: int) -> bool:
    """Whether the output projection of `block` is stored."""
    return is_there(_paths(store, block)[0] / "zarr.json")


def write_projection(
    store: FeatureStore,
    block: int,
    weight: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    check: Callable[[], None] = lambda: None,
) -> None:
    """Store `weight` `[d_heads, d_model]` and `bias` `[d_model]`, float32, such that `z @ weight + bias` is
    the attention output. The weight's metadata is written last and marks both as complete.

    `check` is called before anything is written; what it raises ends the writing.
    """
    weight_path, bias_path = _paths(store, block)
    check()
    _write_groups(_groups(store, [weight_path] if bias is None else [weight_path, bias_path]))
    if bias is not None:
        _write_array(bias_path, block, bias, has_bias=None, check=check)
    _write_array(weight_path, block, weight, has_bias=bias is not None, check=check)


def projection_groups(store: FeatureStore) -> list[Path]:
    """Metadata of the Zarr groups that hold projections."""
    return _groups(store, [path.parent for path in _metadata_paths(store)])


def write_projection_groups(store: FeatureStore) -> None:
    """Write the metadata of these groups."""
    _write_groups(projection_groups(store))


def _groups(store: FeatureStore, arrays: Sequence[Path]) -> list[Path]:
    root = store.zarr_path / "projections"
    return [group / "zarr.json" for group in (root, *sorted({path.parent for path in arrays}))]


def _write_groups(groups: Sequence[Path]) -> None:
    for path in groups:
        if not is_there(path):
            rewrite(path, json_bytes(ZARR_GROUP))


def _metadata_paths(store: FeatureStore) -> list[Path]:
    return sorted((store.zarr_path / "projections").glob("o_proj*/[0-9]*/zarr.json"))


def renew_metadata(store: FeatureStore, check: Callable[[], None] = lambda: None) -> None:
    """Write the metadata of earlier versions as this one does; the numbers stay. `check` as for
    `write_projection`."""
    for path in _metadata_paths(store):
        # What is damaged is for `verify` to tell of.
        with contextlib.suppress(LookupError, TypeError, ValueError, CorruptDataError):
            found = read_json(path)
            today, earlier = _forms(found)
            if found == earlier:
                check()
                write_json(path, today)


def read_projection(
    store: FeatureStore, block: int
) -> tuple[NDArray[np.float32], NDArray[np.float32] | None]:
    """Weight `[d_heads, d_model]` and bias `[d_model]` or None, float32.

    Raises:
        NotFoundError: it is not stored.
        CorruptDataError: a checksum or the metadata does not match, or a file is missing.
    """
    weight_path, bias_path = _paths(store, block)
    if not has_projection(store, block):
        raise NotFoundError(
            f"the output projection of block {block} is not in the store {store.store_id[:12]}; capture "
            f"attention_rows={block} to store it"
        )
    weight, has_bias = _read_array(weight_path, block)
    return weight, _read_array(bias_path, block)[0] if has_bias else None


def stored_projections(store: FeatureStore) -> list[int]:
    """Blocks whose output projection is stored."""
    found = (p.name for p in (store.zarr_path / "projections" / "o_proj").glob("[0-9]*"))
    return sorted(int(n) for n in found if n.isdigit() and has_projection(store, int(n)))


def drop_projection(store: FeatureStore, block: int) -> None:
    """Make a projection missing again, its metadata first."""
    weight, bias = _paths(store, block)
    for path in (weight / "zarr.json", _chunk_path(weight, (1, 1)), bias / "zarr.json"):
        remove(path)
    remove(_chunk_path(bias, (1,)))


def _write_array(
    path: Path,
    block: int,
    values: NDArray[np.float32],
    *,
    has_bias: bool | None,
    check: Callable[[], None],
) -> None:
    """`has_bias` is None of a bias itself."""
    raw = np.ascontiguousarray(values, dtype="<f4").tobytes()
    crc = crc32c(raw)
    check()
    write_durably(_chunk_path(path, values.shape), raw + crc.to_bytes(4, "little"))
    metadata = _metadata(values.shape, has_bias)
    metadata["attributes"] |= _seal(values.shape, has_bias, block, crc)
    check()
    write_json(path / "zarr.json", metadata)


def _chunk_path(path: Path, shape: Sequence[int]) -> Path:
    return path.joinpath("c", *("0" for _ in shape))


def _seal(shape: Sequence[int], has_bias: bool | None, block: int, crc: int) -> dict[str, Any]:
    """Ties a projection's metadata to its numbers, as data followed by its own crc32c would match any block's
    metadata. Projections of earlier versions have none."""
    known = {"block": block, "chunk_crc32c": crc}
    return {**known, "checksum": digest({**known, "shape": list(shape), **_mark(has_bias)})}


def _mark(has_bias: bool | None) -> dict[str, bool]:
    """Of a weight. A lost bias would otherwise look like a projection that has none."""
    return {} if has_bias is None else {"has_bias": has_bias}


def _metadata(shape: Sequence[int], has_bias: bool | None) -> dict[str, Any]:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shape)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN",
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
        "attributes": {"logical_dtype": "float32", **_mark(has_bias)},
        "dimension_names": ["d_heads", "d_model"][-len(shape) :],
    }


def _forms(document: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The metadata of a projection's shape, bias and seal, as this version writes it and as earlier ones did,
    which filled missing numbers with zeros and said of a bias that it has none.

    Raises:
        LookupError, TypeError, ValueError: there are no such things in `document`.
    """
    shape, attributes = tuple(document["shape"]), document["attributes"]
    has_bias = None if len(shape) == 1 else attributes["has_bias"]
    today = _metadata(shape, has_bias)
    earlier: dict[str, Any] = {**_metadata(shape, bool(has_bias)), "fill_value": 0.0}
    if "checksum" in attributes:
        block, crc = attributes["block"], attributes["chunk_crc32c"]
        today["attributes"] |= _seal(shape, has_bias, block, crc)
        earlier["attributes"] |= _seal(shape, bool(has_bias), block, crc)
    return today, earlier


def is_metadata(document: Any) -> bool:
    """Whether this is the metadata of a projection, as it was written."""
    try:
        return document in _forms(document)
    except (LookupError, TypeError, ValueError):
        return False


def _read_array(path: Path, block: int) -> tuple[NDArray[np.float32], bool]:
    """Values, and whether they have a bias. Not read through Zarr, for which a missing chunk is no error."""
    try:
        found = read_json(path / "zarr.json")
        forms, shape = _forms(found), tuple(found["shape"])
        fetch_missing([_chunk_path(path, shape)])
        content = read_whole(_chunk_path(path, shape))
        values = np.frombuffer(content[:-4], dtype="<f4").reshape(shape)
    except (LookupError, TypeError, ValueError, OSError, CorruptDataError) as error:
        raise CorruptDataError(f"{_damaged(path)}: {error}") from error
    crc, attributes = crc32c(content[:-4]), found["attributes"]
    is_of_these = "checksum" not in attributes or (
        (attributes["block"], attributes["chunk_crc32c"]) == (block, crc)
    )
    if found not in forms or not is_of_these:
        raise CorruptDataError(
            f"{_damaged(path)}: its zarr.json is not what was written for these numbers"
        )
    if crc != int.from_bytes(content[-4:], "little"):
        raise CorruptDataError(f"{_damaged(path)}: its checksum does not match")
    return values, attributes.get("has_bias", False)


def _damaged(path: Path) -> str:
    return f"the projection {public_name(path)} is damaged (run 'permafrost repair')"
