"""Whether a config describes a model that can be built, and the weights beside it are of that model."""

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig

from permafrost.stages.bounds import MAX_LAYERS
from permafrost.stages.extraction.checkpoint import reason, tensor_shapes
from permafrost.stages.extraction.families import Family
from permafrost.stages.extraction.files import BackboneFiles, weight_files
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_WIDEST = 1 << 24
"""Of anything in a config."""


def require_sizes(config: PreTrainedConfig, folder: Path) -> None:
    """Check the sizes that everything else is computed from.

    Raises:
        InputError: one is no whole number from 1, or far beyond any model; or heads do not divide.
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
    # Which tokens are allowed is for the model to say: some released configs have -1.
    if padding is not None and not isinstance(padding, int):
        raise InputError(
            f"{where} has pad_token_id {quoted(padding)}, expected the number of a token; get the file again"
        )


def require_buildable(config: PreTrainedConfig, family: Family, files: BackboneFiles) -> None:
    """Build the model without memory for its weights, and compare it with the weights' header.

    Raises:
        InputError: an activation, a rope type or another field that transformers cannot use, or a tensor of
            another shape than the config gives it.
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
                f"{refused}: {quoted(name)} has the shape {list(stored_shape)} there, but config.json makes "
                f"it {list(shape)}; the two belong to different models, so get both again"
            )


_KNOWN: dict[str, dict[str, tuple[int, ...]]] = {}


def _shapes(
    config: PreTrainedConfig, family: Family, folder: Path, weights_digest: str
) -> dict[str, tuple[int, ...]]:
    """Shape by name, with and without the prefix that models with a head on top give their names."""
    if weights_digest not in _KNOWN:
        with quiet_loading(), torch.device("meta"):
            try:
                model = cast(nn.Module, AutoModel.from_config(config, **family.load_options))
            except Exception as error:
                # Whatever a model's own code trips over: KeyError for an activation, ValueError for sizes.
                raise InputError(
                    f"config.json in {folder} describes no {quoted(config.model_type)} model that can be "
                    f"built: {reason(error)}"
                ) from error
        prefix: Any = getattr(model, "base_model_prefix", "")
        plain = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        _KNOWN[weights_digest] = plain | {f"{prefix}.{n}": shape for n, shape in plain.items()}
    return _KNOWN[weights_digest]
