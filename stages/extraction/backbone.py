"""Frozen backbones: sizes from the config, tokenizer, and the loaded network."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pickle import UnpicklingError
from typing import Any, Literal, cast

import torch
import transformers
from safetensors import SafetensorError
from torch import nn

from permafrost.stages.extraction.attention import ATTENTION, register_attention
from permafrost.stages.extraction.biased_attention import replace_attention
from permafrost.stages.extraction.checkpoint import reason
from permafrost.stages.extraction.device import choose_device
from permafrost.stages.extraction.families import FAMILIES, Family, family_of
from permafrost.stages.extraction.files import (
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    read_config,
    require_unchanged,
)
from permafrost.stages.extraction.half_imported import require_imported
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.stages.extraction.recording import watch
from permafrost.stages.extraction.remote_code import require_own_model, require_own_tokenizer
from permafrost.stages.extraction.shape_check import require_buildable, require_sizes
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

__all__ = [
    "Backbone",
    "BackboneConfig",
    "BackboneFiles",
    "BackboneSizes",
    "find_backbone",
    "load_backbone",
    "load_tokenizer",
    "read_sizes",
]

_UNREADABLE = (RuntimeError, ValueError, OSError, EOFError, SafetensorError, UnpicklingError)
"""Errors that damaged or foreign weight files raise."""

_STORED_BESIDE = re.compile(
    r"attn\.(masked_)?bias$|attention\.(masked_)?bias$|inv_freq$|position_ids$"
)
"""Masks, frequencies and positions that older versions of transformers stored with the weights."""


@dataclass(frozen=True)
class Backbone:
    """A loaded frozen transformer with its tokenizer. Several threads may run it at once."""

    files: BackboneFiles
    sizes: BackboneSizes
    tokenizer: "transformers.PreTrainedTokenizerBase"
    model: "transformers.PreTrainedModel"
    family: Family
    dtype: torch.dtype
    device: torch.device


def read_sizes(files: BackboneFiles) -> BackboneSizes:
    """Sizes from the config alone, in the vocabulary of this project.

    Raises:
        InputError: the architecture, or this configuration of it, is not supported.
    """
    model_type = str(read_config(files.folder).get("model_type"))
    family = family_of(model_type, f"the backbone {quoted(files.source)}")
    require_own_model(model_type, files.folder)
    config = _config(files)
    _require_supported(config, family, files.source)
    require_sizes(config, files.folder)
    require_buildable(config, family, files)
    n_heads, d_model = config.num_attention_heads, config.hidden_size
    n_kv_heads = getattr(config, "num_key_value_heads", None) or n_heads
    d_head = getattr(config, "head_dim", None) or d_model // n_heads
    padding = family.padding_index(config)
    unused = 0 if padding is None else padding + 1
    return BackboneSizes(
        model_type=model_type,
        n_layers=config.num_hidden_layers,
        d_model=d_model,
        d_value=n_kv_heads * d_head,
        n_attn_heads=n_heads,
        n_kv_heads=n_kv_heads,
        d_head=d_head,
        has_final_norm=family.has_final_norm(config),
        is_decoder=family.is_decoder,
        max_positions=_longest(config) - unused,
    )


def _longest(config: "transformers.PreTrainedConfig") -> int:
    """Positions that a text may have. With `longrope` those up to which frequencies are the same: beyond it
    transformers takes others for all texts of a batch, so that a text's states would depend on its batch."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type")) != "longrope":
        return config.max_position_embeddings
    original = rope.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    return min(original or config.max_position_embeddings, config.max_position_embeddings)


def load_tokenizer(files: BackboneFiles) -> "transformers.PreTrainedTokenizerBase":
    """The tokenizer, with truncation and padding switched off.

    Raises:
        InputError: it cannot be loaded, has no fast implementation, which character positions need, splits
            words at random, or is of a class that the folder brings along; or the files of the backbone
            changed since they were hashed.
    """
    require_own_tokenizer(files.folder)
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            files.folder, local_files_only=True, trust_remote_code=False
        )
        # Damaged rules for special tokens show only when they are applied.
        ids: list[int] = tokenizer("a")["input_ids"]
    except BaseException as error:
        # The tokenizers library raises plain Exception, and panics in Rust are not even that.
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        require_imported(error)
        raise InputError(
            f"the tokenizer in {files.folder} cannot be loaded ({reason(error)}); a tokenizer.json, as "
            f"tokenizer.save_pretrained writes it, always can"
        ) from error
    if not tokenizer.is_fast:
        raise InputError(
            f"the tokenizer in {files.folder} ({type(tokenizer).__name__}) has no fast implementation, which "
            f"character positions need; save one with a tokenizer.json beside the model"
        )
    if max(ids, default=0) >= (vocab_size := vocabulary_size(files)):
        raise InputError(
            f"the tokenizer in {files.folder} gives the text 'a' the token id {max(ids):,}, but the model's "
            f"vocabulary has {vocab_size:,} tokens; the two belong to different models, so get both again"
        )
    if dropout := getattr(tokenizer.backend_tokenizer.model, "dropout", None):
        raise InputError(
            f"the tokenizer in {files.folder} leaves out merges at random (dropout {dropout:g} of the model "
            "in tokenizer.json), so that a text has other tokens each time; set dropout to null there"
        )
    # tokenizer.json may carry both (all-MiniLM-L6-v2: cut at 128, pad to 128).
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    require_unchanged(files)
    return tokenizer


def vocabulary_size(files: BackboneFiles) -> int:
    """How many tokens the model has embeddings of; raises InputError if its config cannot be read."""
    return _config(files).vocab_size


def load_backbone(
    files: BackboneFiles,
    dtype: Literal["float32", "bfloat16", "float16"] | str,
    device: str = "auto",
) -> Backbone:
    """Load the weights, frozen and in evaluation mode, with the capture hooks installed.

    Args:
        files: from `find_backbone`.
        dtype: precision of weights and activations, whatever the checkpoint's own dtype.
        device: `auto` (the first GPU, else the CPU) or a torch device.

    Raises:
        InputError: the backbone is not supported, its checkpoint lacks weights or changed since it was
            hashed, or there is no such device.
    """
    sizes = read_sizes(files)
    family = FAMILIES[sizes.model_type]
    torch_device = choose_device(device)
    precision = cast(torch.dtype, getattr(torch, dtype))
    register_attention()
    model = _load_model(files, family, precision)
    cast(nn.Module, model).to(torch_device)
    # Whatever calls our attention function, masks are made for its name.
    is_routed = model.config._attn_implementation == ATTENTION
    if family.attends_by == "biased_attention":
        replace_attention(model, family)
    else:
        is_routed = is_routed and model._can_set_attn_implementation()
    if not is_routed:
        raise InputError(
            f"transformers {transformers.__version__} does not route the attention of "
            f"{quoted(sizes.model_type)} "
            f"models through its interface, so that values and attention rows cannot be captured"
        )
    model.eval().requires_grad_(False)
    watch(model, family)
    # Last: it checks the files that all of this was read from.
    tokenizer = load_tokenizer(files)
    return Backbone(files, sizes, tokenizer, model, family, precision, torch_device)


def _load_model(
    files: BackboneFiles, family: Family, dtype: torch.dtype
) -> "transformers.PreTrainedModel":
    config = _config(files)
    config.use_cache = False
    with quiet_loading():
        try:
            model, info = cast(
                tuple[transformers.PreTrainedModel, dict[str, Any]],
                transformers.AutoModel.from_pretrained(
                    files.folder,
                    config=config,
                    dtype=dtype,
                    attn_implementation=ATTENTION,
                    local_files_only=True,
                    trust_remote_code=False,
                    output_loading_info=True,
                    **family.load_options,
                ),
            )
        except ImportError as error:
            require_imported(error)
            raise
        except _UNREADABLE as error:
            raise InputError(
                f"the weights in {files.folder} cannot be loaded as a {quoted(config.model_type)} model: "
                f"{error}"
            ) from error
    if missing := sorted(info["missing_keys"]):
        raise InputError(
            f"the checkpoint {files.folder} lacks {len(missing)} weights that a "
            f"{quoted(config.model_type)} model "
            f"needs, among them {', '.join(missing[:5])}; transformers would fill them with random numbers. "
            f"Check that config.json belongs to these weights"
        )
    if unread := _unread(info["unexpected_keys"], family, config.num_hidden_layers):
        raise InputError(
            f"the checkpoint {files.folder} has {len(unread)} weights in its blocks that a "
            f"{quoted(config.model_type)} model of its config.json does not read, among them "
            f"{', '.join(unread[:5])}; without them its states are those of another model. Check that "
            "config.json belongs to these weights, and that transformers still has this kind of model"
        )
    return model


def _unread(unexpected: Iterable[str], family: Family, n_layers: int) -> list[str]:
    """Weights of the blocks that were not loaded; not those of blocks that the config leaves out, nor masks
    and frequencies that older checkpoints hold beside the weights."""
    block = re.compile(rf"(?:^|\.){re.escape(family.blocks)}\.(\d+)\.")
    return sorted(
        name
        for name in unexpected
        if (found := block.search(name))
        and int(found[1]) < n_layers
        and not _STORED_BESIDE.search(name)
    )


def _config(files: BackboneFiles) -> "transformers.PreTrainedConfig":
    try:
        config = transformers.AutoConfig.from_pretrained(
            files.folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        require_imported(error)
        # Each config class checks its fields, or trips over them, in its own way.
        raise InputError(
            f"config.json in {files.folder} cannot be read: {reason(error)}"
        ) from error
    # A checkpoint that was saved while these were on would return, and keep, every layer twice.
    config.output_hidden_states = False
    config.output_attentions = False
    return config


def _require_supported(
    config: "transformers.PreTrainedConfig", family: Family, source: str
) -> None:
    """Raises: InputError: quantised weights, attention in other directions than the family's, or no padding
    index where positions start after it."""
    if family.positions_after_padding and family.padding_index(config) is None:
        raise InputError(
            f"config.json of the backbone {quoted(source)} has no pad_token_id, after which the positions of "
            f"a {quoted(config.model_type)} model start; give the number that it was trained with, which is "
            "1 for the released ones"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(
            f"the backbone {quoted(source)} has quantised weights, which are not supported; use the "
            "original ones"
        )
    if family.is_decoder:
        bidirectional = getattr(config, "use_bidirectional_attention", None)
        if bidirectional or not getattr(config, "is_causal", True):
            raise InputError(
                f"the backbone {quoted(source)} is a {quoted(config.model_type)} model set to attend in "
                f"both directions, which is not supported for this architecture; it is run as a causal model"
            )
    elif getattr(config, "is_decoder", False):
        raise InputError(
            f"the backbone {quoted(source)} is a {quoted(config.model_type)} model set to be a decoder "
            f"(is_decoder in config.json), which is not supported; it is run as an encoder"
        )
