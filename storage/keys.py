"""Identity: canonical JSON and its digest. Nothing is hashed through str() or pickle."""

import hashlib
import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, cast

from pydantic import BaseModel

KEY_VERSION = 2
"""1 before kinds had their own code in keys. Artifacts of an earlier version can be read, but are not
reused."""
KEY_LENGTH = 32
_SCALARS = (str, int, bool, type(None))
"""Plain as they are. Most values of a document are, so they are not passed on one by one."""


def to_plain(value: object, where: str = "$") -> Any:
    """Convert a value to plain JSON types, or refuse.

    Args:
        value: None, bool, int, float, str, list, tuple, mapping with string keys, pydantic model.
        where: path of the value, for the message.

    Raises:
        TypeError: a type has no canonical form.
        ValueError: NaN (not equal to itself) or infinity (not JSON).
    """
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} is {value}; a key needs finite numbers")
        # As in RFC 8785: 1.0 is 1 and -0.0 is 0, or a default of `1` would differ from an explicit 1.0.
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, BaseModel):
        # mode="python" keeps types that JSON would turn into strings, so that they are refused below.
        return to_plain(value.model_dump(mode="python"), where)
    if isinstance(value, list | tuple):
        items = cast(list[object], value)
        return [
            item if isinstance(item, _SCALARS) else to_plain(item, f"{where}[{i}]")
            for i, item in enumerate(items)
        ]
    if isinstance(value, Mapping):
        mapping = cast(Mapping[object, object], value)
        for key in mapping:
            if not isinstance(key, str):
                raise TypeError(
                    f"{where} has the key {key!r}; only string keys have a canonical form"
                )
        return {
            str(k): v if isinstance(v, _SCALARS) else to_plain(v, f"{where}.{k}")
            for k, v in mapping.items()
        }
    raise TypeError(f"{where} is a {type(value).__name__}, which has no canonical form in a key")


def canonical_json(value: object) -> bytes:
    """UTF-8 JSON with sorted keys, no spaces, no NaN: equal values give equal bytes."""
    return json.dumps(
        to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False
    ).encode()


def digest(value: object) -> str:
    """First 32 hex digits (128 bits) of the SHA-256 of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()[:KEY_LENGTH]


def definitions_digest(definitions: Mapping[str, str]) -> str:
    """`digest` of a code fingerprint: a thousand definitions that most nodes of a kind share."""
    return _definitions_digest(frozenset(definitions.items()))


@lru_cache(maxsize=32)
def _definitions_digest(definitions: frozenset[tuple[str, str]]) -> str:
    return digest(dict(definitions))


def text_digest(text: str) -> str:
    """SHA-256 of the UTF-8 text, 64 hex digits: what `sha256sum` prints for a file holding it."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
