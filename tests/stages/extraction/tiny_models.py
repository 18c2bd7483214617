"""Small random-weight models of every supported family, as folders that load like any other checkpoint.

Weights are drawn wide, so that attention is far from uniform and every block changes the states.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModel as AutoModelClass
from transformers import (
    BertConfig,
    BloomConfig,
    DistilBertConfig,
    FalconConfig,
    Gemma2Config,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    ModernBertConfig,
    MPNetConfig,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    XLMRobertaConfig,
)

N_LAYERS, D_MODEL, N_HEADS, N_KV_HEADS, VOCABULARY = 3, 32, 4, 2, 320
OFTEN = ("bert", "mpnet", "modernbert", "gpt2", "llama", "gemma2", "qwen3")
"""Families that `make test` tries everything on, for what they differ in: absolute, learned, relative and
rotary positions, local attention, one product for query, key and value, fewer heads of keys, soft caps, norms
of queries and keys, norms behind blocks. `make test-deep` has the others."""
WINDOW = 5
"""Sliding window, shorter than the longest of TEXTS."""
_SENTENCES = (
    "the a snow ice frost lake river cold warm melts freezes slowly under over night sun wind is was "
    "and never always deep thin white blue grey , . ! ?"
)
WORDS = _SENTENCES.split()
TEXTS = (
    "snow melts",
    "the deep lake freezes slowly under thin ice .",
    "a warm wind is never cold , and the river was always blue and grey under the white sun !",
    "ice",
)

_COMMON: dict[str, Any] = {
    "hidden_size": D_MODEL,
    "num_hidden_layers": N_LAYERS,
    "num_attention_heads": N_HEADS,
}
_SIZES: dict[str, Any] = {
    **_COMMON,
    "vocab_size": VOCABULARY,
    "intermediate_size": 48,
    "initializer_range": 0.25,
}
_GROUPED: dict[str, Any] = {
    **_SIZES,
    "num_key_value_heads": N_KV_HEADS,
    "max_position_embeddings": 64,
}
_SPECIAL: dict[str, Any] = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "bert": lambda: BertConfig(**_SIZES, max_position_embeddings=64, pad_token_id=1),
    "roberta": lambda: RobertaConfig(**_SIZES, max_position_embeddings=66, **_SPECIAL),
    "xlm-roberta": lambda: XLMRobertaConfig(**_SIZES, max_position_embeddings=66, **_SPECIAL),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=VOCABULARY,
        dim=D_MODEL,
        n_layers=N_LAYERS,
        n_heads=N_HEADS,
        hidden_dim=48,
        max_position_embeddings=64,
        initializer_range=0.25,
        pad_token_id=1,
    ),
    "mpnet": lambda: MPNetConfig(**_SIZES, max_position_embeddings=66, **_SPECIAL),
    "modernbert": lambda: ModernBertConfig(
        **_SIZES,
        max_position_embeddings=64,
        local_attention=2 * WINDOW,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
        cls_token_id=0,
        sep_token_id=2,
        **_SPECIAL,
    ),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=D_MODEL,
        n_layer=N_LAYERS,
        n_head=N_HEADS,
        n_positions=64,
        initializer_range=0.25,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "gpt_neox": lambda: GPTNeoXConfig(**_SIZES, max_position_embeddings=64, **_SPECIAL),
    "opt": lambda: OPTConfig(
        **_COMMON,
        vocab_size=VOCABULARY,
        ffn_dim=48,
        word_embed_proj_dim=D_MODEL,
        max_position_embeddings=64,
        init_std=0.25,
        **_SPECIAL,
    ),
    "llama": lambda: LlamaConfig(**_GROUPED, attention_bias=True, **_SPECIAL),
    "mistral": lambda: MistralConfig(**_GROUPED, sliding_window=WINDOW, **_SPECIAL),
    "qwen2": lambda: Qwen2Config(
        **_GROUPED, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1, **_SPECIAL
    ),
    # A head width of its own: n_attn_heads * d_head is not d_model.
    "qwen3": lambda: Qwen3Config(**_GROUPED, head_dim=12, **_SPECIAL),
    "gemma2": lambda: Gemma2Config(
        **_GROUPED,
        head_dim=8,
        query_pre_attn_scalar=12,
        sliding_window=WINDOW,
        # Far below the usual 50, so that it bites at these logits.
        attn_logit_softcapping=2.0,
        **_SPECIAL,
    ),
    "phi3": lambda: Phi3Config(**_GROUPED, **_SPECIAL),
}
"""One config per supported `model_type`."""

UNSUPPORTED: dict[str, Callable[[], PreTrainedConfig]] = {
    "bloom": lambda: BloomConfig(
        vocab_size=VOCABULARY, hidden_size=D_MODEL, n_layer=N_LAYERS, n_head=N_HEADS
    ),
    "falcon": lambda: FalconConfig(**_COMMON, vocab_size=VOCABULARY),
}
"""Architectures that do not route their attention through transformers' interface."""


def word_tokenizer() -> PreTrainedTokenizerFast:
    """Words, lower-cased, with <s> before and </s> after a text, as encoders have it."""
    names = ["<s>", "<pad>", "</s>", "<unk>", *WORDS]
    rust = Tokenizer(models.WordLevel({w: i for i, w in enumerate(names)}, unk_token="<unk>"))
    rust.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    rust.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return _wrap(rust, sep_token="</s>", cls_token="<s>")


def byte_tokenizer(*, adds_bos: bool) -> PreTrainedTokenizerFast:
    """Byte-level BPE with a few merges, <s> before a text if `adds_bos`, as decoders have it."""
    names = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "a"),
        ("i", "c"),
        ("ic", "e"),
        ("Ġ", "the"),
        (".", '"'),
    ]
    names += [left + right for left, right in merges]
    rust = Tokenizer(models.BPE({w: i for i, w in enumerate(names)}, merges))
    rust.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    rust.decoder = decoders.ByteLevel()
    single = "<s> $A" if adds_bos else "$A"
    rust.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 0)])
    return _wrap(rust)


def each_family(names: Iterable[str]) -> list[Any]:
    """Parameters of a test that is tried on every one of these families."""
    return [
        name if name in OFTEN else pytest.param(name, marks=pytest.mark.deep)
        for name in sorted(names)
    ]


def save_model(
    model_type: str, folder: Path, dtype: torch.dtype = torch.float32, **changes: Any
) -> Path:
    """Write config, weights and tokenizer of a random model; `changes` override config fields."""
    config = {**CONFIGS, **UNSUPPORTED}[model_type]()
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelClass.from_config(config)
        for name, parameter in model.named_parameters():
            # Norms and biases start at 1 and 0, which would hide a forgotten one.
            if parameter.ndim == 1:
                torch.nn.init.normal_(
                    parameter, mean=float("norm" in name or "ln_" in name), std=0.2
                )
    model.to(dtype).save_pretrained(folder)
    is_encoder = "bert" in model_type or model_type == "mpnet"
    tokenizer = word_tokenizer() if is_encoder else byte_tokenizer(adds_bos=model_type != "gpt2")
    tokenizer.save_pretrained(folder)
    return folder


def _wrap(rust: Tokenizer, **special: str) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=rust,
        bos_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=60,
        **special,
    )
