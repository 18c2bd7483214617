"""Checks that the files of a checkpoint are complete and belong together, before anything is loaded."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from permafrost.storage.errors import InputError
from permafrost.storage.file_marks import marks_of
from permafrost.storage.quoting import LIMIT, quoted, visible


def reason(error: BaseException) -> str:
    """A library's error message on one line of at most 300 characters; some are pages long."""
    text = visible(" ".join(str(error).split()))
    message = text if len(text) <= 3 * LIMIT else f"{text[: 3 * LIMIT]}…"
    return (
        message
        if isinstance(error, ValueError | OSError) and message
        else f"{type(error).__name__}: {message}"
    )


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file.

    Raises:
        InputError: the file cannot be read, is not JSON, is nested too deeply, has an integer too long to
            parse, or holds something other than an object.
    """
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise InputError(f"{path} is not JSON ({reason(error)}); get the file again") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds no JSON object; get the file again")
    return cast(dict[str, Any], content)


def weight_map(index: Path) -> dict[str, str]:
    """The tensor-to-file table in the index of a sharded checkpoint.

    Raises:
        InputError: there is no such table, or it names something other than a file beside the index.
    """
    try:
        weights: Any = read_object(index).get("weight_map")
    except InputError as error:
        raise InputError(f"{index} is not a valid weight index: {error}") from error
    if not isinstance(weights, dict) or not weights:
        raise InputError(
            f"{index} is not a valid weight index: its weight_map is {quoted(weights)}, expected tensors and "
            f"their files; get the file again"
        )
    table = cast(dict[str, Any], weights)
    for tensor, name in table.items():
        if (
            not isinstance(name, str)
            or not name
            or "\0" in name
            or Path(name).name != name
            or len(name) > 200
        ):
            raise InputError(
                f"{index} names {quoted(name)} for the tensor {quoted(tensor)}, expected the name of a file "
                f"beside it; get the file again"
            )
    return table


def tensor_shapes(folder: Path, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, from the headers of the safetensors files among `names`; reads no weights.

    Raises:
        InputError: a file is truncated or not safetensors, or an index lists a tensor that its file does not
            have.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name in (n for n in names if n.endswith(".safetensors")):
        shapes |= _shapes(folder / name, marks_of((folder / name).stat()))
    for index in (n for n in names if n.endswith(".safetensors.index.json")):
        if lost := sorted(weight_map(folder / index).keys() - shapes.keys()):
            raise InputError(
                f"{folder / index} names {len(lost)} tensors that its files do not have, among them "
                f"{', '.join(map(quoted, lost[:3]))}; get the files again"
            )
    return shapes


@lru_cache(maxsize=256)
def _shapes(path: Path, marks: tuple[int, ...]) -> Mapping[str, tuple[int, ...]]:
    """The shapes in one file; its marks are there so that a changed file is read again."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise InputError(
            f"{path} is not a complete safetensors file of {path.stat().st_size:,} bytes ({reason(error)}); "
            f"get the file again"
        ) from error
