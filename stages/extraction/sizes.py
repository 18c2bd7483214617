"""Sizes of a backbone, read from its config alone."""

from pydantic import BaseModel, ConfigDict


class BackboneSizes(BaseModel):
    """Sizes of a backbone that are known before its weights are loaded."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    model_type: str
    """transformers' name of the architecture."""
    n_layers: int
    """Number of blocks, L."""
    d_model: int
    """Width of the residual stream."""
    d_value: int
    """Width of the values of one token: n_kv_heads * d_head."""
    n_attn_heads: int
    n_kv_heads: int
    """Heads of keys and values; fewer than n_attn_heads with grouped queries."""
    d_head: int
    has_final_norm: bool
    """Whether there is a norm after the last block, and so a `hidden/final`."""
    is_decoder: bool
    """Causal attention: a token sees only what comes before it."""
    max_positions: int
    """Longest input in tokens, special tokens included."""
