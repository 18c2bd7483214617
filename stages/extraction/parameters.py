"""How many parameters a backbone has, by the headers of its weight files."""

from math import prod
from pathlib import Path

from safetensors import SafetensorError, safe_open

from permafrost.stages.extraction.files import BackboneConfig, find_backbone
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError


def count_parameters(folder: Path) -> int:
    """Numbers in the safetensors files of a folder; shared weights are stored, and counted, once.

    Raises:
        InputError: there are none, or one is damaged.
    """
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise InputError(
            f"{folder} has no .safetensors files, whose headers say how many parameters a backbone has; "
            "save it with model.save_pretrained"
        )
    try:
        return sum(map(_in_file, paths))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"the weights in {folder} cannot be read ({error}); get them again"
        ) from error


def _in_file(path: Path) -> int:
    with safe_open(path, framework="np") as file:
        names = file.keys()
        return sum(prod(file.get_slice(name).get_shape()) for name in names)


def parameters_and_kind(config: BackboneConfig) -> tuple[int, bool]:
    """Number of parameters of a backbone, and whether it is a decoder.

    Raises:
        InputError: it is not there, or cannot be used.
    """
    # Imported here: transformers takes a second.
    from permafrost.stages.extraction.backbone import read_sizes

    files = find_backbone(config)
    sizes: BackboneSizes = read_sizes(files)
    return count_parameters(files.folder), sizes.is_decoder
