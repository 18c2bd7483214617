"""Sizes of backbones as their authors published them, to plan with where neither their files nor the hub can
be reached.

They are what the `config.json` of each says. Nothing is ever computed with them.
"""

import importlib.resources
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from permafrost.stages.extraction.files import ALIASES, CONFIG, TOKENIZER_FILES

_BERT_BASE: Mapping[str, Any] = {"model_type": "bert"}
_E5: Mapping[str, Any] = {"model_type": "bert", "vocab_size": 30_522}
_E5_SMALL = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
_LARGE = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}
_ROBERTA: Mapping[str, Any] = {
    "model_type": "roberta",
    "vocab_size": 50_265,
    "max_position_embeddings": 514,
    "type_vocab_size": 1,
    "pad_token_id": 1,
}
_MISTRAL: Mapping[str, Any] = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "max_position_embeddings": 32_768,
}
_LLAMA_2: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
}
_QWEN: Mapping[str, Any] = {"vocab_size": 151_936, "max_position_embeddings": 32_768}
_QWEN_3 = {**_QWEN, "model_type": "qwen3", "num_key_value_heads": 8, "head_dim": 128}

PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "google-bert/bert-base-uncased": _BERT_BASE,
    "princeton-nlp/sup-simcse-bert-base-uncased": _BERT_BASE,
    "cambridgeltl/SapBERT-from-PubMedBERT-fulltext": _BERT_BASE,
    "FacebookAI/roberta-base": _ROBERTA,
    "FacebookAI/roberta-large": {**_ROBERTA, **_LARGE},
    "intfloat/e5-small-v2": {**_E5, **_E5_SMALL},
    "intfloat/e5-base-v2": _E5,
    "intfloat/e5-large-v2": {**_E5, **_LARGE},
    "sentence-transformers/all-mpnet-base-v2": {
        "model_type": "mpnet",
        "vocab_size": 30_527,
        "max_position_embeddings": 514,
        "pad_token_id": 1,
    },
    "gpt2-medium": {"model_type": "gpt2", "n_embd": 1024, "n_layer": 24, "n_head": 16},
    "mistralai/Mistral-7B-v0.1": _MISTRAL,
    "mistralai/Mistral-7B-Instruct-v0.3": {**_MISTRAL, "vocab_size": 32_768},
    "intfloat/e5-mistral-7b-instruct": _MISTRAL,
    "meta-llama/Llama-2-7b-hf": _LLAMA_2,
    "meta-llama/Llama-2-7b-chat-hf": _LLAMA_2,
    "meta-llama/Llama-3.2-3B": {
        "model_type": "llama",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 28,
        "num_attention_heads": 24,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128_256,
        "max_position_embeddings": 131_072,
    },
    "TinyLlama/TinyLlama_v1.1": {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "vocab_size": 32_000,
        "max_position_embeddings": 2048,
    },
    "HuggingFaceTB/SmolLM2-360M": {
        "model_type": "llama",
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "vocab_size": 49_152,
        "max_position_embeddings": 8192,
    },
    "google/gemma-2-9b": {
        "model_type": "gemma2",
        "hidden_size": 3584,
        "intermediate_size": 14_336,
        "num_hidden_layers": 42,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "vocab_size": 256_000,
        "max_position_embeddings": 8192,
    },
    "Qwen/Qwen2-0.5B": {
        **_QWEN,
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 131_072,
    },
    "Qwen/Qwen2-1.5B-Instruct": {
        **_QWEN,
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
    },
    "Qwen/Qwen3-8B": {
        **_QWEN_3,
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "max_position_embeddings": 40_960,
    },
    "Qwen/Qwen3-Embedding-0.6B": {
        **_QWEN_3,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
}
"""Fields of `config.json` by the name on the hub; those left out are the defaults of transformers."""


def write_stand_in(name: str, folder: Path) -> None:
    """Write a folder that a plan can read in the place of a published backbone: its sizes, no weights, and
    the tokenizer of the packaged all-MiniLM-L6-v2, whose number of tokens is near that of others."""
    from safetensors.numpy import save_file
    from transformers import AutoConfig

    fields = dict(PUBLISHED[name])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    folder.mkdir()
    (folder / CONFIG).write_text(json.dumps(config.to_dict(), default=str))
    # No weights, but the name of what decoders rank tokens with, which some probes look for.
    unembedding = {"lm_head.weight": np.zeros((0, config.hidden_size), np.float16)}
    save_file(unembedding, folder / "model.safetensors")
    package, inside = ALIASES["minilm"]
    packaged = Path(str(importlib.resources.files(package))) / inside
    for file in TOKENIZER_FILES:
        if (packaged / file).is_file():
            shutil.copy(packaged / file, folder / file)
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    # The length is the backbone's, not that of the packaged one, and decoders' tokenizers name an end.
    stated["model_max_length"] = config.max_position_embeddings
    stated.update(bos_token="[CLS]", eos_token="[SEP]")
    (folder / "tokenizer_config.json").write_text(json.dumps(stated))
