"""Synthetic texts, our extraction of them, and transformers' own model over the very same batches."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModel

from permafrost.stages.extraction.backbone import Backbone, BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress

WORDS = (  # noqa: SIM905 # a hundred quoted words read worse
    "the of and to in a is that for it as was with be by on not he his but at are this have from or "
    "had an they which one you were her all she there would their we him been has when who will more "
    "no if out so said what up its about into than them can only other new some could time these two "
    "snow ice lake river mountain glacier temperature measurement permafrost winter northern expedition"
).split()
TOKENS_PER_WORD = 1.05
CAPTURE = "hidden=all,values=all,attention_rows=all"
QUIET = SilentProgress()


def synthetic(n_tokens: int, median_words: float, seed: int = 0) -> list[str]:
    """Different texts of about `n_tokens` tokens together."""
    rng = np.random.default_rng(seed)
    texts: dict[str, None] = {}
    total = 0.0
    while total < n_tokens:
        n = int(np.clip(rng.lognormal(np.log(median_words), 0.7), 4, 350))
        texts[" ".join(WORDS[i] for i in rng.integers(0, len(WORDS), n))] = None
        total += n * TOKENS_PER_WORD + 2
    return list(texts)


def target_of(source: str, capture: str = CAPTURE) -> ExtractTarget:
    """By default all layers of everything."""
    backbone = BackboneConfig(source=source)
    return resolve_target(ExtractConfig(backbone=backbone, capture=parse_capture(capture)))


def run_ours(
    target: ExtractTarget,
    home: Path,
    texts: Sequence[str],
    backbone: Backbone,
    batch: int,
    device: str = "cpu",
) -> FeatureStore:
    """Extract into an empty home."""
    shutil.rmtree(home, ignore_errors=True)
    digests = [text_digest(t) for t in texts]
    runtime = ExtractRuntime(device=device, batch_tokens=batch)
    return extract(target, home, texts, digests, runtime, QUIET, load=lambda: backbone).store


def bare_model(target: ExtractTarget, attention: str, device: str = "cpu") -> Any:
    """transformers' own model."""
    model = AutoModel.from_pretrained(
        target.files.folder, attn_implementation=attention, dtype=torch.float32
    )
    return model.eval().requires_grad_(False).to(device)


def batches_of(run: Callable[[], object], backbone: Backbone) -> list[dict[str, Any]]:
    """The inputs that the backbone is called with during `run`."""
    seen: list[dict[str, Any]] = []
    names = ("input_ids", "attention_mask")
    hook = backbone.model.register_forward_pre_hook(
        lambda _, __, inputs: seen.append({name: inputs[name] for name in names}), with_kwargs=True
    )
    try:
        run()
    finally:
        hook.remove()
    return seen


def run_bare(model: Any, batches: Sequence[dict[str, Any]]) -> None:
    """Every batch, keeping nothing."""
    with torch.inference_mode():
        for batch in batches:
            model(**batch)
    if batches and (ids := batches[0]["input_ids"]).is_cuda:
        torch.cuda.synchronize(ids.device)
