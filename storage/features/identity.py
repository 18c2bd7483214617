"""The identity of a feature store, as opposed to its provenance."""

from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from permafrost.storage.errors import IdentityMismatchError
from permafrost.storage.keys import digest, to_plain
from permafrost.storage.quoting import quoted

FORMAT_VERSION = 1
LAYER_SEMANTICS = (
    "hidden/0=embedding output; hidden/k=after block k, before any final norm; blocks 1..L"
)

FloatName = Literal["float32", "float16", "bfloat16"]


class StoreIdentity(BaseModel):
    """Everything that determines the numbers in a store; its digest names the store.

    Left out on purpose: library versions, device, attention implementation, batch sizes and our own code.
    They are recorded as provenance in each receipt, and `verify --recompute` measures whether they matter.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = FORMAT_VERSION
    weights_digest: str
    """SHA-256 over the backbone's config and weight files."""
    tokenizer_digest: str
    """SHA-256 over the tokenizer's files."""
    recipe: dict[str, Any]
    """The recipe with all its fields, defaults included."""
    compute_dtype: FloatName
    storage_dtype: FloatName
    max_length: int
    """Tokens per input, special tokens included."""
    layer_semantics: str = LAYER_SEMANTICS

    @property
    def store_id(self) -> str:
        """32 hex digits."""
        return digest(self)


def flatten(value: object, path: str = "") -> dict[str, object]:
    """Flatten nested JSON to `{"a.b[0]": leaf}`, to compare two documents field by field."""
    if isinstance(value, dict) and value:
        mapping = cast(dict[str, object], value)
        parts = [flatten(v, f"{path}.{k}" if path else k) for k, v in mapping.items()]
    elif isinstance(value, list) and value:
        parts = [flatten(v, f"{path}[{i}]") for i, v in enumerate(cast(list[object], value))]
    else:
        return {path: value}
    return {key: leaf for part in parts for key, leaf in part.items()}


def differences(left: object, right: object) -> list[tuple[str, object, object]]:
    """Fields in which two plain JSON documents differ: (path, left value, right value)."""
    a, b = flatten(left), flatten(right)
    absent = "(absent)"
    return [
        (path, a.get(path, absent), b.get(path, absent))
        for path in dict.fromkeys([*a, *b])
        if a.get(path, absent) != b.get(path, absent)
    ]


def require_same(recorded: StoreIdentity, wanted: StoreIdentity, where: str) -> None:
    """Raise unless both identities are equal.

    Raises:
        IdentityMismatchError: they differ; the message has every differing field with both values.
    """
    found = differences(to_plain(recorded), to_plain(wanted))
    if found:
        lines = "; ".join(
            f"{path}: store has {quoted(old)}, requested is {quoted(new)}"
            for path, old, new in found
        )
        error = IdentityMismatchError(
            f"the store at {where} was created with another identity ({lines}). Use a separate store "
            f"(another --home), or request what this one holds"
        )
        error.differing = tuple(found)
        raise error
