"""Language models that score nodes: loaded with their heads by transformers' own classes, and run in batches.

A backbone as it is loaded for extraction has no head and captures what it computes; here neither is wanted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import transformers
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from permafrost.stages.extraction.backbone import load_tokenizer
from permafrost.stages.extraction.checkpoint import reason
from permafrost.stages.extraction.device import choose_device
from permafrost.stages.extraction.facts import facts_of, max_length_of
from permafrost.stages.extraction.files import BackboneConfig, find_backbone, require_unchanged
from permafrost.stages.extraction.half_imported import require_imported
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.stages.extraction.token_budget import CPU_BATCH_TOKENS, batches
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

_GPU_BATCH_TOKENS = 1 << 15


@dataclass(frozen=True)
class LanguageModel:
    """A frozen model with its tokenizer."""

    model: Any
    tokenizer: "transformers.PreTrainedTokenizerBase"
    is_decoder: bool
    max_length: int
    device: torch.device

    def batches(self, sequences: Sequence[Sequence[int]]) -> Iterator[NDArray[np.int64]]:
        """Rows of the sequences, shortest first, as many at a time as the device takes well."""
        lengths = np.array([len(s) for s in sequences], np.int64)
        order = np.argsort(lengths, kind="stable")
        budget = CPU_BATCH_TOKENS if self.device.type == "cpu" else _GPU_BATCH_TOKENS
        for rows in batches(lengths[order], budget):
            yield order[rows]

    def padded(
        self, sequences: Sequence[Sequence[int]]
    ) -> tuple[Int[Tensor, "batch length"], Int[Tensor, "batch length"]]:
        """Token ids, padded on the right, and the attention mask."""
        longest = max(map(len, sequences))
        # The padding is masked, so that any token does.
        pad = self.tokenizer.pad_token_id or 0
        ids = torch.tensor([[*s, *[pad] * (longest - len(s))] for s in sequences])
        mask = torch.tensor([[1] * len(s) + [0] * (longest - len(s)) for s in sequences])
        return ids.to(self.device), mask.to(self.device)


def model_facts(config: BackboneConfig) -> dict[str, Any]:
    """Digests of a model's files instead of its name, and how it is run."""
    files = find_backbone(config)
    return {
        "weights": files.weights_digest,
        "tokenizer": files.tokenizer_digest,
        "dtype": config.dtype,
        "max_length": config.max_length,
    }


def load_reader(config: BackboneConfig, device: str) -> LanguageModel:
    """A model without a head, for its states."""
    return _load(config, device, transformers.AutoModel, transformers.AutoModel, "it")


def load_language_model(config: BackboneConfig, device: str) -> LanguageModel:
    """A decoder with its head for the next token, or an encoder with its head for masked ones.

    Raises:
        InputError: the checkpoint cannot be loaded, or has no such head.
    """
    return _load(
        config,
        device,
        transformers.AutoModelForCausalLM,
        transformers.AutoModelForMaskedLM,
        "its language model head",
    )


def _load(
    config: BackboneConfig, device: str, decoder: Any, encoder: Any, wanted: str
) -> LanguageModel:
    files = find_backbone(config)
    facts = facts_of(files)
    sizes, tokenizer = facts.sizes, load_tokenizer(files)
    chosen = choose_device(device)
    settings = transformers.AutoConfig.from_pretrained(
        files.folder, local_files_only=True, trust_remote_code=False
    )
    with quiet_loading():
        try:
            model, info = (decoder if sizes.is_decoder else encoder).from_pretrained(
                files.folder,
                config=settings,
                dtype=getattr(torch, config.dtype),
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
        except Exception as error:
            require_imported(error)
            # Each model class trips over damaged files in its own way.
            raise InputError(
                f"the model in {files.folder} cannot be loaded with {wanted}: {reason(error)}"
            ) from error
    missing = sorted(key for key in info["missing_keys"] if "pooler" not in key)
    if missing:
        raise InputError(
            f"the checkpoint of {quoted(config.source)} lacks {len(missing)} weights of {wanted}, among them "
            f"{', '.join(missing[:3])}; transformers would fill them with random numbers. Use a model that "
            "was saved with it (AutoModelForCausalLM or AutoModelForMaskedLM), or relevance of kind 'cosine'"
        )
    model.to(chosen).eval().requires_grad_(False)
    require_unchanged(files)
    return LanguageModel(model, tokenizer, sizes.is_decoder, max_length_of(config, facts), chosen)


def mean_states(
    model: LanguageModel, sequences: Sequence[Sequence[int]]
) -> Iterator[tuple[NDArray[np.int64], Float[Tensor, "batch d"]]]:
    """Rows, and the mean over all tokens of their last states, unit length, float32 on the CPU."""
    for rows in model.batches(sequences):
        ids, mask = model.padded([sequences[row] for row in rows])
        with torch.inference_mode():
            states = model.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        weights = mask.unsqueeze(2).float()
        mean = (states * weights).sum(1) / weights.sum(1)
        yield rows, torch.nn.functional.normalize(mean, dim=1).cpu()
