"""Checks that a config describes a model that can be built, and that the weights beside it fit."""

from pathlib import Path
from typing import Any, cast

import torch
import transformers
from torch import nn

from permafrost.stages.bounds import MAX_LAYERS
from permafrost.stages.extraction.checkpoint import reason, tensor_shapes
from permafrost.stages.extraction.families import Family
from permafrost.stages.extraction.files import BackboneFiles, weight_files
from permafrost.stages.extraction.half_imported import require_imported
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.storage.errors import InputError
from permafrost.storage.kept import keep, kept
from permafrost.storage.quoting import quoted

_WIDEST = 1 << 24
"""Largest width accepted in a config."""


def require_sizes(config: "transformers.PreTrainedConfig", folder: Path) -> None:
    """Check the sizes that everything else is computed from.

    Raises:
        InputError: a size is not a positive integer or is implausibly large, or the numbers of heads do not
            divide.
    """
    where = folder / "config.json"
    bounds = {
        "num_hidden_layers": MAX_LAYERS,
        "hidden_size": _WIDEST,
        "num_attention_heads": _WIDEST,
        "max_position_embeddings": 1 << 40,
        "vocab_size": 1 << 31,
    }
    optional = {"num_key_value_heads": _WIDEST, "head_dim": _WIDEST, "intermediate_size": _WIDEST}
    sizes = {name: getattr(config, name, None) for name in (*bounds, *optional)}
    for name, largest in (bounds | optional).items():
        value = sizes[name]
        if value is None and name in optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= largest:
            raise InputError(
                f"{where} has {name} {quoted(value)}, expected a whole number from 1 to {largest:,}; get "
                f"the file again"
            )
    heads, shared = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    if shared is not None and heads % shared:
        raise InputError(
            f"{where} has num_attention_heads {heads} and num_key_value_heads {shared}, which does not "
            f"divide it; get the file again"
        )
    padding: Any = config.pad_token_id
    # The range is left to the model: some released configs have -1.
    if padding is not None and not isinstance(padding, int):
        raise InputError(
            f"{where} has pad_token_id {quoted(padding)}, expected the number of a token; get the file again"
        )


def require_buildable(
    config: "transformers.PreTrainedConfig", family: Family, files: BackboneFiles
) -> None:
    """Build the model on the meta device, and compare its shapes with those in the weight files' headers.

    Raises:
        InputError: transformers cannot use a field (an activation, a rope type), or a tensor does not have
            the shape that the config implies.
    """
    refused = (
        f"the weights in {files.folder} cannot be loaded as a {quoted(config.model_type)} model"
    )
    try:
        stored = tensor_shapes(files.folder, weight_files(files.folder))
    except InputError as error:
        raise InputError(f"{refused}: {error}") from error
    for name, shape in _shapes(config, family, files.folder, files.weights_digest).items():
        stored_shape = stored.get(name)
        if stored_shape is not None and stored_shape != shape:
            raise InputError(
                f"{refused}: {quoted(name)} has the shape {list(stored_shape)}, but config.json implies "
                f"{list(shape)}; the two belong to different models, so get both again"
            )


_SHAPES: dict[str, dict[str, tuple[int, ...]]] = {}


def _shapes(
    config: "transformers.PreTrainedConfig", family: Family, folder: Path, weights_digest: str
) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor, by its name with and without the prefix of models with a head on top."""
    if weights_digest not in _SHAPES:
        # Kept, as transformers' models take seconds to import.
        made_from = [
            weights_digest,
            transformers.__version__,
            torch.__version__,
            family.load_options,
        ]
        named = kept("shapes", weights_digest[:32], made_from)
        if named is None:
            named = _built(config, family, folder)
            keep("shapes", weights_digest[:32], made_from, named)
        _SHAPES[weights_digest] = {name: tuple(shape) for name, shape in named.items()}
    return _SHAPES[weights_digest]


def _built(
    config: "transformers.PreTrainedConfig", family: Family, folder: Path
) -> dict[str, list[int]]:
    with quiet_loading(), torch.device("meta"):
        try:
            model = cast(
                nn.Module, transformers.AutoModel.from_config(config, **family.load_options)
            )
        except Exception as error:
            require_imported(error)
            # Whatever a model's own code trips over: KeyError for an activation, ValueError for sizes.
            raise InputError(
                f"config.json in {folder} describes no {quoted(config.model_type)} model that can be "
                f"built: {reason(error)}"
            ) from error
    prefix: Any = getattr(model, "base_model_prefix", "")
    plain = {name: list(value.shape) for name, value in model.state_dict().items()}
    return plain | {f"{prefix}.{n}": shape for n, shape in plain.items()}
