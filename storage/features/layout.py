"""Axes, array names, sizes and the Zarr v3 metadata of a feature store.

S: token slots of a segment; N: text rows of a segment. One shard of any array is one segment.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.features.identity import FloatName
from permafrost.storage.quoting import quoted

Axis = Literal["token", "text"]
Codec = Literal["none", "zstd"]

CHUNK_BYTES = 1 << 20
"""Maximum size of inner chunks; 0.5-2 MB is fastest to read with every engine (benchmarks/)."""
SHARD_BYTES = 64 << 20
"""Maximum size of the residual stream's shards."""


class Axes(BaseModel):
    """Sizes of a segment on both axes; fixed at creation, and the same for every array."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    segment_tokens: int
    segment_texts: int
    chunk_bytes: int = CHUNK_BYTES
    """Maximum size of inner chunks; recorded, so that old stores stay readable if the default changes."""


def _floor_power(n: int) -> int:
    return 1 << (max(n, 1).bit_length() - 1)


def choose_axes(d_model: int, storage_dtype: FloatName, max_length: int) -> Axes:
    """Segments whose residual-stream shard is 32-64 MB, whatever the width of the backbone."""
    row_bytes = d_model * numpy_dtype(storage_dtype).itemsize
    tokens = max(_floor_power(SHARD_BYTES // row_bytes), 1 << (max_length - 1).bit_length())
    return Axes(segment_tokens=tokens, segment_texts=max(tokens // 8, 1))


def check_axes(axes: Axes, max_length: int) -> None:
    """Raises: InputError: a text of `max_length` tokens would not fit in a segment."""
    for name, size in (
        ("segment_tokens", axes.segment_tokens),
        ("segment_texts", axes.segment_texts),
    ):
        if size < 1 or size & (size - 1):
            raise InputError(f"{name} is {size}; it has to be a power of two")
    if axes.segment_tokens < max_length:
        raise InputError(
            f"segment_tokens is {axes.segment_tokens} but a text may have {max_length} tokens; a text "
            f"never crosses a segment, so make the segment larger or max_length smaller"
        )


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy dtype of the bytes on disk; bfloat16 is stored as its uint16 bits."""
    return np.dtype({"bfloat16": "uint16"}.get(name, name)).newbyteorder("<")


_BFLOAT16_NAN = 0x7FC0
_NOT_THE_COPIED_SIGN = np.int32(-0x70000001)
_BIAS = np.float32(2.0**112)
_BEYOND = np.float32(2.0**16)


def widen(rows: NDArray[Any], dtype: str) -> NDArray[np.float32]:
    """Stored rows of the logical `dtype`, any shape, as float32 numbers."""
    if dtype == "bfloat16":
        return (rows.astype(np.uint32) << 16).view(np.float32)
    if rows.dtype != np.float16 or not rows.flags.c_contiguous:
        return rows.astype(np.float32, copy=False)
    # NumPy converts float16 one number at a time; these four vectorised passes are several times faster.
    # Sign, exponent and mantissa are shifted into place, and a power of two corrects the exponent's bias,
    # which is exact, even for subnormal numbers.
    bits = rows.view(np.int16).astype(np.int32)
    bits <<= 13
    bits &= _NOT_THE_COPIED_SIGN
    wide = bits.view(np.float32)
    wide *= _BIAS
    # Infinity and NaN would become finite numbers, beyond float16's largest.
    if wide.size and (wide.max() >= _BEYOND or wide.min() <= -_BEYOND):
        return rows.astype(np.float32)
    return wide


@dataclass(frozen=True)
class ArraySpec:
    """One array of the store."""

    name: str
    """Path inside the Zarr group, e.g. `hidden/6`."""
    axis: Axis
    width: int | None
    """Second dimension; None for 1-D arrays."""
    dtype: str
    """Logical dtype: int32, bool, float32, float16 or bfloat16."""
    columns: str = "d_model"
    """Dimension name of the second axis."""

    @property
    def storage(self) -> np.dtype[Any]:
        """dtype of the bytes on disk."""
        return numpy_dtype(self.dtype)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on disk."""
        return (self.width or 1) * self.storage.itemsize

    @property
    def fill(self) -> int | float | bool:
        """What a slot without a text holds, in the dtype on disk: no number that a backbone could give."""
        if self.dtype == "bool":
            return False
        if self.dtype == "bfloat16":
            return _BFLOAT16_NAN
        return -1 if self.storage.kind in "iu" else math.nan

    def segment_rows(self, axes: Axes) -> int:
        """Rows of one shard."""
        return axes.segment_tokens if self.axis == "token" else axes.segment_texts

    def chunk_rows(self, axes: Axes) -> int:
        """Rows of one inner chunk; a power of two that divides the shard."""
        return min(_floor_power(axes.chunk_bytes // self.row_bytes), self.segment_rows(axes))


TOKEN_IDS = ArraySpec("token_ids", "token", None, "int32")
SPAN = ArraySpec("span", "token", None, "bool")
TEXT_OF_TOKEN = ArraySpec("text_of_token", "token", None, "int32")
"""Row of each token's text on the axis `text`; made from the segment tables."""


class StoreSizes(BaseModel):
    """Widths of the arrays of one backbone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_layers: int
    d_model: int
    d_value: int
    """All KV heads concatenated."""
    n_attn_heads: int


def array_spec(array: str, sizes: StoreSizes, dtype: FloatName) -> ArraySpec:
    """Axis, width and dtype of an array by its name.

    Raises:
        NotFoundError: no such kind of array.
    """
    for fixed in (TOKEN_IDS, SPAN, TEXT_OF_TOKEN):
        if array == fixed.name:
            return fixed
    parts = array.split("/")
    match parts:
        case ["hidden", _]:
            return ArraySpec(array, "token", sizes.d_model, dtype, "d_model")
        case ["values", _]:
            return ArraySpec(array, "token", sizes.d_value, dtype, "d_value")
        case ["attention_rows", _]:
            return ArraySpec(array, "token", sizes.n_attn_heads, dtype, "attn_head")
        case ["pooled", what, _] if what.startswith("hidden_"):
            return ArraySpec(array, "text", sizes.d_model, dtype, "d_model")
        case ["pooled", what, _] if what.startswith("values_"):
            return ArraySpec(array, "text", sizes.d_value, dtype, "d_value")
        case _:
            raise NotFoundError(
                f"{quoted(array)} is not an array of a feature store; there are token_ids, span, "
                f"text_of_token, hidden/<index>, values/<block>, attention_rows/<block> and "
                f"pooled/<hidden|values>_<how>/<index>"
            )


def in_order(names: Iterable[str]) -> list[str]:
    """Names of arrays sorted, those with numbers by their numbers: `hidden/2` before `hidden/10`."""

    def key(name: str) -> list[tuple[bool, int, str]]:
        return [(not p.isdigit(), int(p) if p.isdigit() else 0, p) for p in name.split("/")]

    return sorted(names, key=key)


def zarr_metadata(spec: ArraySpec, axes: Axes, n_segments: int, codec: Codec) -> dict[str, Any]:
    """The `zarr.json` of an array (Zarr v3, sharding codec, index at the end)."""
    tail = () if spec.width is None else (spec.width,)
    little = {"name": "bytes", "configuration": {"endian": "little"}}
    to_bytes = {"name": "bytes"} if spec.storage.itemsize == 1 else little
    compress = [{"name": "zstd", "configuration": {"level": 1, "checksum": False}}]
    inner = [to_bytes, *(compress if codec == "zstd" else []), {"name": "crc32c"}]
    shard = spec.segment_rows(axes)
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [n_segments * shard, *tail],
        "data_type": spec.storage.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [shard, *tail]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": "NaN" if spec.fill != spec.fill else spec.fill,
        "codecs": [
            {
                "name": "sharding_indexed",
                "configuration": {
                    "chunk_shape": [spec.chunk_rows(axes), *tail],
                    "codecs": inner,
                    "index_codecs": [little, {"name": "crc32c"}],
                    "index_location": "end",
                },
            }
        ],
        "attributes": {"logical_dtype": spec.dtype},
        "dimension_names": [spec.axis, *([spec.columns] if tail else [])],
    }


def earlier_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """An array's metadata as earlier versions wrote it, which filled every slot without a text with zeros."""
    zeros = {"bool": False, "int32": 0, "uint16": 0}
    return {**metadata, "fill_value": zeros.get(metadata["data_type"], 0.0)}


def n_segments_of(metadata: Any, of_one: dict[str, Any]) -> int:
    """For how many segments an array's metadata were written; 0 if they are not of this array.

    Args:
        metadata: as read.
        of_one: the array's own for one segment.
    """
    (shard, *tail) = of_one["shape"]
    is_object = isinstance(metadata, dict)
    shape: Any = cast(dict[str, Any], metadata).get("shape") if is_object else None
    if not (isinstance(shape, list) and shape and isinstance(shape[0], int) and shape[0] >= 0):
        return 0
    wanted = {**of_one, "shape": [shape[0], *tail]}
    is_right = shape[0] % shard == 0 and metadata in (wanted, earlier_metadata(wanted))
    return shape[0] // shard if is_right else 0


ZARR_GROUP: dict[str, Any] = {"zarr_format": 3, "node_type": "group", "attributes": {}}


def shard_key(spec: ArraySpec, segment: int) -> str:
    """Path of a shard relative to the Zarr group."""
    return f"{spec.name}/c/{segment}" + ("" if spec.width is None else "/0")
