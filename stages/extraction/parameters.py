"""How many parameters a backbone has, by the headers of its weight files."""

from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from permafrost.stages.extraction.files import weight_files
from permafrost.storage.errors import InputError


def count_parameters(folder: Path) -> int:
    """Numbers in the safetensors files that transformers would load from a folder; shared weights are
    stored, and counted, once.

    Raises:
        InputError: the weights are in another format, or a file is damaged.
    """
    names = weight_files(folder)
    if not all(name.endswith(".safetensors") for name in names):
        raise InputError(
            f"{folder} has no .safetensors files, whose headers say how many parameters a backbone has; "
            "save it with model.save_pretrained"
        )
    try:
        return sum(_in_file(folder / name) for name in names)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"the weights in {folder} cannot be read ({error}); get them again"
        ) from error


def _in_file(path: Path) -> int:
    with safe_open(path, framework="np") as file:
        names = file.keys()
        return sum(prod(file.get_slice(name).get_shape()) for name in names)
