"""The architectures that are supported, and where each keeps the parts that captures need.

A family is listed only if the tests prove it: hidden states, values and attention rows equal to
transformers' own, output projection consistent. An architecture is supported if it routes its attention
through transformers' AttentionInterface, or if a module of ours stands in for its attention (MPNet). Some
(Bloom, DeBERTa-v2) accept another attention function and silently never call it, so the list is explicit.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import transformers
from jaxtyping import Float
from torch import Tensor, nn

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class Family:
    """Where an architecture keeps its parts; paths are attribute paths."""

    blocks: str
    """The list of blocks, from the model."""
    attention: str
    """The module that calls the attention function, from a block."""
    output_projection: str
    """The linear layer that mixes the attention heads, from a block."""
    final_norm: str | None
    """The norm after the last block, from the model; None if the architecture has none."""
    is_decoder: bool
    """Causal attention."""
    attention_layers: tuple[str, ...]
    """The linear layers of queries, keys, values (one layer where they are fused) and of the attention's
    output, from a block."""
    feed_forward_layers: tuple[str, ...]
    """The linear layers after the attention (gate, up and down; one layer where gate and up are fused)."""
    attention_norms: tuple[str, ...]
    """The norms that belong to the attention, from a block: that of its input or output, and those of queries
    and keys."""
    keys: str | None = None
    """The linear layer of the keys alone, one of `attention_layers`; None where it is fused."""
    positions_after_padding: bool = False
    """Learned positions start after the padding index (RoBERTa), so those up to it are never used."""
    fixed_padding: int | None = None
    """The padding index that positions start after, where it is the same whatever the config says (MPNet)."""
    attends_by: Literal["interface", "biased_attention"] = "interface"
    """What calls our attention function: transformers' interface, or a module of ours in the place of the
    architecture's own."""
    block_returns: Literal["states", "tuple"] = "states"
    """What a block returns: its states, or a tuple that begins with them."""
    embedding: str | None = None
    """The input embedding, from the model; given for decoders, whose unembedding may be tied to it."""
    load_options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the model class that switch off unused parts."""

    def block_list(self, model: "transformers.PreTrainedModel") -> Sequence[nn.Module]:
        """Blocks 1..L in order; block k is element k - 1."""
        return list(cast(nn.ModuleList, model.get_submodule(self.blocks)))

    def attention_module(self, model: "transformers.PreTrainedModel", block: int) -> nn.Module:
        """The module of block `block` (1-based) that calls the attention function."""
        return self.block_list(model)[block - 1].get_submodule(self.attention)

    def projection_module(self, model: "transformers.PreTrainedModel", block: int) -> nn.Module:
        """The output projection of block `block` (1-based)."""
        return self.block_list(model)[block - 1].get_submodule(self.output_projection)

    def norm_module(self, model: "transformers.PreTrainedModel") -> nn.Module | None:
        """The final norm, or None."""
        return model.get_submodule(self.final_norm) if self.final_norm else None

    def padding_index(self, config: "transformers.PreTrainedConfig") -> int | None:
        """The token that positions are not counted at, and start after; None where they start at 0."""
        if not self.positions_after_padding:
            return None
        return config.pad_token_id if self.fixed_padding is None else self.fixed_padding

    def has_final_norm(self, config: "transformers.PreTrainedConfig") -> bool:
        """Whether a model with this config has a final norm."""
        if self.final_norm is None:
            return False
        # OPT-350m normalises after each block instead, and has no norm at the end.
        normalises_last = getattr(config, "do_layer_norm_before", True)
        return normalises_last and not getattr(config, "_remove_final_layer_norm", False)


def _inside(module: str, *layers: str) -> tuple[str, ...]:
    return tuple(f"{module}.{layer}" for layer in layers)


def _bert(*, positions_after_padding: bool = False) -> Family:
    return Family(
        blocks="encoder.layer",
        attention="attention.self",
        output_projection="attention.output.dense",
        final_norm=None,
        is_decoder=False,
        attention_layers=(
            *_inside("attention.self", "query", "key", "value"),
            "attention.output.dense",
        ),
        feed_forward_layers=("intermediate.dense", "output.dense"),
        attention_norms=("attention.output.LayerNorm",),
        keys="attention.self.key",
        positions_after_padding=positions_after_padding,
        load_options={"add_pooling_layer": False},
    )


_LLAMA = Family(
    blocks="layers",
    attention="self_attn",
    output_projection="self_attn.o_proj",
    final_norm="norm",
    is_decoder=True,
    attention_layers=_inside("self_attn", "q_proj", "k_proj", "v_proj", "o_proj"),
    feed_forward_layers=_inside("mlp", "gate_proj", "up_proj", "down_proj"),
    attention_norms=("input_layernorm",),
    keys="self_attn.k_proj",
    embedding="embed_tokens",
)

FAMILIES: dict[str, Family] = {
    "bert": _bert(),
    "roberta": _bert(positions_after_padding=True),
    "xlm-roberta": _bert(positions_after_padding=True),
    "distilbert": Family(
        blocks="transformer.layer",
        attention="attention",
        output_projection="attention.out_lin",
        final_norm=None,
        is_decoder=False,
        attention_layers=_inside("attention", "q_lin", "k_lin", "v_lin", "out_lin"),
        feed_forward_layers=_inside("ffn", "lin1", "lin2"),
        attention_norms=("sa_layer_norm",),
        keys="attention.k_lin",
    ),
    "mpnet": Family(
        blocks="encoder.layer",
        attention="attention.attn",
        output_projection="attention.attn.o",
        final_norm=None,
        is_decoder=False,
        attention_layers=_inside("attention.attn", "q", "k", "v", "o"),
        feed_forward_layers=("intermediate.dense", "output.dense"),
        attention_norms=("attention.LayerNorm",),
        keys="attention.attn.k",
        positions_after_padding=True,
        fixed_padding=1,
        attends_by="biased_attention",
        block_returns="tuple",
        load_options={"add_pooling_layer": False},
    ),
    "modernbert": Family(
        blocks="layers",
        attention="attn",
        output_projection="attn.Wo",
        final_norm="final_norm",
        is_decoder=False,
        attention_layers=_inside("attn", "Wqkv", "Wo"),
        feed_forward_layers=_inside("mlp", "Wi", "Wo"),
        attention_norms=("attn_norm",),
    ),
    "gpt2": Family(
        blocks="h",
        attention="attn",
        output_projection="attn.c_proj",
        final_norm="ln_f",
        is_decoder=True,
        attention_layers=_inside("attn", "c_attn", "c_proj"),
        feed_forward_layers=_inside("mlp", "c_fc", "c_proj"),
        attention_norms=("ln_1",),
        embedding="wte",
    ),
    "gpt_neox": Family(
        blocks="layers",
        attention="attention",
        output_projection="attention.dense",
        final_norm="final_layer_norm",
        is_decoder=True,
        attention_layers=_inside("attention", "query_key_value", "dense"),
        feed_forward_layers=_inside("mlp", "dense_h_to_4h", "dense_4h_to_h"),
        attention_norms=("input_layernorm",),
        embedding="embed_in",
    ),
    "opt": Family(
        blocks="decoder.layers",
        attention="self_attn",
        output_projection="self_attn.out_proj",
        final_norm="decoder.final_layer_norm",
        is_decoder=True,
        attention_layers=_inside("self_attn", "q_proj", "k_proj", "v_proj", "out_proj"),
        feed_forward_layers=("fc1", "fc2"),
        attention_norms=("self_attn_layer_norm",),
        keys="self_attn.k_proj",
        embedding="decoder.embed_tokens",
    ),
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": replace(
        _LLAMA, attention_norms=("input_layernorm", *_inside("self_attn", "q_norm", "k_norm"))
    ),
    # Its norm of this name follows the attention; elsewhere that is the one before the feed-forward layers.
    "gemma2": replace(_LLAMA, attention_norms=("input_layernorm", "post_attention_layernorm")),
    "phi3": replace(
        _LLAMA,
        attention_layers=_inside("self_attn", "qkv_proj", "o_proj"),
        feed_forward_layers=_inside("mlp", "gate_up_proj", "down_proj"),
        keys=None,
    ),
}
"""By transformers' `model_type`."""


def family_of(model_type: str, where: str) -> Family:
    """The family of a `model_type`.

    Raises:
        InputError: it is not supported; the message lists those that are.
    """
    if model_type not in FAMILIES:
        raise InputError(
            f"{where} is a {quoted(model_type)} model, which is not supported; supported are "
            f"{', '.join(sorted(FAMILIES))}. Captures are tested for these architectures only: in another, "
            f"values and attention rows may be wrong or missing without a word. Use a backbone of one of "
            f"these types"
        )
    return FAMILIES[model_type]


@runtime_checkable
class HasModel(Protocol):
    """The parts of a loaded backbone that this module needs."""

    @property
    def model(self) -> "transformers.PreTrainedModel":
        """The network."""
        ...

    @property
    def family(self) -> Family:
        """Its family."""
        ...


def output_projection(
    backbone: HasModel, block: int
) -> tuple[Float[np.ndarray, "d_heads d_model"], Float[np.ndarray, " d_model"] | None]:
    """Weight and bias of the output projection of block `block` (1-based), float32 on the host.

    `z @ weight + bias` is the attention output, for z the heads' outputs side by side,
    `[d_heads] = [n_attn_heads * d_head]`.
    """
    weight, bias = projection_tensors(backbone, block)
    return _to_host(weight), None if bias is None else _to_host(bias)


def projection_tensors(
    backbone: HasModel, block: int
) -> tuple[Float[Tensor, "d_heads d_model"], Float[Tensor, " d_model"] | None]:
    """As `output_projection`, float32 on the model's device; of a float32 model not copied."""
    from transformers.pytorch_utils import Conv1D

    module = backbone.family.projection_module(backbone.model, block)
    weight, bias = cast(Tensor, module.weight), cast(Tensor | None, module.bias)
    # GPT-2's Conv1D keeps [in, out] already; nn.Linear keeps [out, in].
    oriented = weight if isinstance(module, Conv1D) else weight.T
    return oriented.detach().float(), None if bias is None else bias.detach().float()


def _to_host(values: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values.cpu().numpy())
