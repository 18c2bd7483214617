"""Converting a Python mapping to the plain values of a YAML file."""

import os
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

from permafrost.flows.experiment_files.yaml_reader import MAX_NESTING
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import LIMIT, quoted, visible


def plain_document(document: Mapping[str, Any], what: str) -> dict[str, Any]:
    """A copy made of dict, list, str, int, float, bool and None; paths become text, NumPy numbers plain ones.

    Args:
        document: fields and their values.
        what: what it is, for messages, e.g. "the experiment".

    Raises:
        InputError: a key is not text, or a value has another type or contains itself; the message says where.
    """
    return _plain(document, what, 0)


def _plain(value: Any, where: str, depth: int) -> Any:
    if depth > MAX_NESTING:
        raise InputError(
            f"{_cut(where)} is nested more than {MAX_NESTING} deep; does a list or mapping contain itself?"
        )
    if value is None or isinstance(value, bool | str | int | float):
        return value
    if isinstance(value, Mapping):
        if others := [key for key in value if not isinstance(key, str)]:
            kind = type(others[0]).__name__
            raise InputError(
                f"{_cut(where)} has the key {quoted(others[0])} of type {kind}; keys are text"
            )
        return {k: _plain(v, f"{where}.{k}", depth + 1) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, f"{where}[{i}]", depth + 1) for i, v in enumerate(value)]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise InputError(
        f"{_cut(where)} is {quoted(value)}, of type {type(value).__name__}; give text, numbers, True, False, "
        "None, lists and mappings only"
    )


def _cut(where: str) -> str:
    return visible(where if len(where) <= LIMIT else f"{where[:LIMIT]}…")
