"""The unembedding: the matrix whose rows score the vocabulary, read from the weight files alone.

Backbones are loaded without it, as nothing that is stored needs it. It is one tensor of the checkpoint, so
tokens can be ranked from stored states without loading the network.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor, nn

from permafrost.stages.extraction.families import family_of
from permafrost.stages.extraction.files import BackboneFiles, read_config, weight_files
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_NAMES = ("lm_head", "embed_out")
"""Its names in checkpoints; GPT-NeoX has the second one."""


@dataclass(frozen=True)
class Unembedding:
    """Scores of the vocabulary from a state after the final norm."""

    rows: Float[Tensor, "vocabulary d"]
    """float32."""
    softcap: float | None
    """Logits are `softcap * tanh(scores / softcap)` (Gemma 2). Their order is that of the scores, but beyond
    nine times the softcap float32 has one value for all of them, so tokens are ranked by scores."""

    def scores(self, normed: Float[Tensor, "n d"]) -> Float[Tensor, "n vocabulary"]:
        """Products with the rows, float32."""
        return nn.functional.linear(normed.float(), self.rows)

    def logits(self, normed: Float[Tensor, "n d"]) -> Float[Tensor, "n vocabulary"]:
        """What the language model itself turns into probabilities, float32."""
        scores = self.scores(normed)
        return scores if self.softcap is None else torch.tanh(scores / self.softcap) * self.softcap

    def uncapped(self) -> "Unembedding":
        """The same rows, whose products are the logits."""
        return Unembedding(self.rows, None)

    def to(self, device: torch.device) -> "Unembedding":
        """The same unembedding on another device."""
        return Unembedding(self.rows.to(device), self.softcap)


def read_unembedding(files: BackboneFiles) -> Unembedding:
    """Read the unembedding of a decoder; nothing else of the weights is loaded.

    As in transformers: a matrix of its own where the checkpoint holds one, else the input embedding if the
    config ties the two.

    Raises:
        InputError: the backbone is an encoder, the checkpoint has no unembedding, or its rows do not have the
            width of the states.
    """
    config, read = _locate(files)
    return Unembedding(
        _require_width(read(), config.hidden_size, files.source),
        getattr(config, "final_logit_softcapping", None),
    )


def require_unembedding(files: BackboneFiles) -> None:
    """Check that a checkpoint holds the unembedding of a decoder; reads only the names of its tensors.

    Raises:
        InputError: the backbone is an encoder, or the checkpoint has no unembedding.
    """
    _locate(files)


def _locate(files: BackboneFiles) -> tuple[Any, Callable[[], Tensor]]:
    """The backbone's config, and a function that reads its unembedding."""
    family = family_of(str(read_config(files.folder).get("model_type")), str(files.folder))
    if family.embedding is None:
        raise InputError(
            f"the backbone {quoted(files.source)} is an encoder, which predicts no next token; use a decoder"
        )
    config = transformers.AutoConfig.from_pretrained(
        files.folder, local_files_only=True, trust_remote_code=False
    )
    is_tied = bool(getattr(config, "tie_word_embeddings", False))
    names = (*_NAMES, family.embedding) if is_tied else _NAMES
    stored = _stored_tensors(files.folder)
    for name in names:
        for key, read in stored.items():
            if f".{key}".endswith(f".{name}.weight"):
                return config, read
    raise InputError(
        f"the checkpoint {files.folder} holds no unembedding (no {' or '.join(_NAMES)}) and its config does "
        f"not tie it to the input embedding, so no token can be ranked; save the model with its language "
        f"model head (AutoModelForCausalLM)"
    )


def _require_width(rows: Tensor, d_model: int, source: str) -> Float[Tensor, "vocabulary d"]:
    if rows.shape[1] != d_model:
        raise InputError(
            f"the unembedding of {quoted(source)} reads {rows.shape[1]} columns, its states have "
            f"{d_model}; the projection in between is not supported, use another backbone"
        )
    return rows.float()


def _stored_tensors(folder: Path) -> dict[str, Callable[[], Tensor]]:
    """The names of all tensors of a checkpoint, each with a function that reads it."""
    tensors: dict[str, Callable[[], Tensor]] = {}
    for name in weight_files(folder):
        path = folder / name
        if name.endswith(".safetensors"):
            with safe_open(path, framework="pt") as opened:
                keys: list[str] = list(opened.keys())
            tensors |= {key: _from_safetensors(path, key) for key in keys}
        elif name.endswith(".bin"):
            content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            tensors |= {key: _from_mapped(cast(Tensor, value)) for key, value in content.items()}
    return tensors


def _from_safetensors(path: Path, key: str) -> Callable[[], Tensor]:
    def read() -> Tensor:
        with safe_open(path, framework="pt") as opened:
            return opened.get_tensor(key)

    return read


def _from_mapped(value: Tensor) -> Callable[[], Tensor]:
    # A copy, so that the file need not stay open.
    return lambda: value.clone()
