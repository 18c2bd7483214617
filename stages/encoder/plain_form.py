"""Heads that sentence-transformers can compute by itself, as one of its model folders.

Such a head is one of the library's poolings (first or last token, mean, maximum) over a backbone's last
state, with a `Dense` on top if the head was trained on graded pairs. Under `plain` the mean over the span
includes the special tokens that the tokenizer adds, as in the library; under `plain:specials=exclude` and
every other recipe it does not, so those cannot be expressed. In an encoder whose blocks end in their norm
(BERT, RoBERTa, XLM-RoBERTa, DistilBERT) any block can be made the last one by dropping those after it; in
others the last state is always `hidden/final`. The library keeps features in the compute dtype, so its
vectors are ours without the rounding to the store's dtype.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.encoder.answers import answers_of
from permafrost.stages.encoder.load import FittedHead, assemble
from permafrost.stages.encoder.vectors import LatentVectors, TextVectors
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.stages.extraction.recipes import PlainRecipe, recipe_identity
from permafrost.stages.extraction.recompute import COMPUTE_NOISE
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.stages.fit import LoadedHead
from permafrost.stages.fit.models import GradedPairs, SingleClasses
from permafrost.stages.heads.head import HEADS
from permafrost.storage.durable import json_bytes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

Use = Literal["vectors", "classifier"]
"""What a folder is for. A classifier has the head's classes, too."""

POOLING_MODES = ("cls_token", "lasttoken", "mean_tokens", "max_tokens")
"""Poolings of the library that some of our heads are equal to."""

ENDS_IN_ITS_NORM = ("bert", "roberta", "xlm-roberta", "distilbert")
"""Architectures whose state after block k is what a model with k blocks returns."""

TOLERANCE = COMPUTE_NOISE["float32"]
"""Relative difference that another batch or kernel may cause."""

_MOST_PROBE_WORDS = 2048


def obstacle(fitted: FittedHead) -> str | None:
    """Why sentence-transformers alone cannot compute the vectors of a head; None if it can."""
    vectors, target = fitted.vectors, fitted.target
    if isinstance(vectors, LatentVectors):
        return "sentence-transformers has no head on the latents of every layer"
    head, layer = vectors.head.config.head, vectors.head.layer
    if head.sentence_transformers_mode is None:
        alike = (n for n, k in HEADS.kinds().items() if k.sentence_transformers_mode is not None)
        return (
            f"sentence-transformers has no pooling like a head of kind {quoted(head.kind)}, only "
            f"{', '.join(alike)}"
        )
    recipe = target.recipe
    if recipe != PlainRecipe(readout=recipe.readout):
        settings = ", ".join(f"{k}={v}" for k, v in recipe_identity(recipe).items())
        return (
            "sentence-transformers reads a text as the tokenizer gives it and pools over every token, "
            f"special ones included (the recipe 'plain'), but the head reads {settings}"
        )
    if target.identity.compute_dtype != "float32":
        return (
            f"sentence-transformers pools in the dtype of the backbone, {target.identity.compute_dtype} "
            f"here, but the head in float32"
        )
    name, model_type = ArrayName.parse(layer), target.sizes.model_type
    if name.what != "hidden" or name.how is not None:
        return f"sentence-transformers pools hidden states of tokens, but the head reads {layer}"
    if name.index == 0 or (model_type not in ENDS_IN_ITS_NORM and name.index != "final"):
        return (
            f"sentence-transformers reads the last state of a {model_type} model, behind all norms, but "
            f"the head reads {layer}"
        )
    return None


def write_plain(fitted: FittedHead, folder: Path, use: Use = "vectors") -> None:
    """Write a folder that `SentenceTransformer(folder)` loads without Permafrost.

    Its files have the format that the library has read since version 2.

    Args:
        fitted: a head without an `obstacle`.
        folder: empty.
        use: what the library's `encode` gives: vectors, or of a classifier of single texts their logits.
    """
    head = fitted.vectors.module
    assert isinstance(head, LoadedHead), "a head on every layer has an obstacle"
    _write_backbone(fitted.target, head.layer, folder)
    _write_tokenizer(fitted.target, folder)
    modules = ["", "1_Pooling"]
    reads = {"max_seq_length": fitted.target.max_length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_bytes(json_bytes(reads))
    _write_pooling(head, folder / "1_Pooling")
    if isinstance(head.model, GradedPairs):
        modules.append("2_Dense")
        write_dense(head.model.projection, folder / "2_Dense")
    if use == "classifier" and isinstance(head.model, SingleClasses):
        modules.append("2_Dense")
        write_dense(head.model.classifier.linear, folder / "2_Dense")
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.models.{path.partition('_')[2] or 'Transformer'}",
        }
        for i, path in enumerate(modules)
    ]
    (folder / "modules.json").write_bytes(json_bytes(listed))


def plain_difference(fitted: FittedHead, folder: Path, device: str, use: Use = "vectors") -> float:
    """Load the folder with the library and compare it with our own vectors before any rounding; the logits of
    a classifier of single texts likewise.

    Returns:
        max |theirs - ours| / (|ours| + RMS of ours) over a few texts, one of them too long; infinite if the
        widths differ.

    Raises:
        InputError: sentence-transformers is not installed.
    """
    words = min(fitted.target.max_length, _MOST_PROBE_WORDS) + 1
    texts = ["Ice.", "A frozen lake, seen from above; and nothing else?", "snow and ice " * words]
    vectors = answers_of(fitted.vectors) if use == "classifier" else fitted.vectors
    ours = _without_rounding(fitted.target, vectors, texts, device)
    theirs = _by_library(folder, texts, device)
    if theirs.shape != ours.shape:
        return float("inf")
    size = np.abs(ours) + np.sqrt(np.mean(ours.astype(np.float64) ** 2))
    return float(np.max(np.abs(theirs - ours) / size))


def _without_rounding(
    target: ExtractTarget, vectors: TextVectors, texts: list[str], device: str
) -> Vectors:
    identity = target.identity.model_copy(update={"storage_dtype": "float32"})
    exact = replace(target, identity=identity)
    return assemble((exact,), vectors, ExtractRuntime(device=device)).encode(texts)


def _by_library(folder: Path, texts: list[str], device: str) -> Vectors:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise InputError(
            "a folder for sentence-transformers alone is checked with that library, which is not "
            "installed here; install it, or export with --form module"
        ) from error
    chosen_device = None if device == "auto" else device
    with quiet_loading():
        model = SentenceTransformer(str(folder), device=chosen_device, local_files_only=True)
    return cast(Vectors, model.encode(texts, show_progress_bar=False))


def _write_backbone(target: ExtractTarget, layer: str, folder: Path) -> None:
    """Config and weights in float32, up to the block that the head reads."""
    source = target.files.folder
    config = transformers.AutoConfig.from_pretrained(
        source, local_files_only=True, trust_remote_code=False
    )
    index = ArrayName.parse(layer).index
    if index != "final":
        config.num_hidden_layers = index
    with quiet_loading():
        model, info = cast(
            tuple[transformers.PreTrainedModel, dict[str, Any]],
            transformers.AutoModel.from_pretrained(
                source,
                config=config,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            ),
        )
        # A pooler, which is not used here, may be missing; transformers fills it with random numbers.
        for name in info["missing_keys"]:
            torch.nn.init.zeros_(model.get_parameter(name))
        model.save_pretrained(folder)


def _write_tokenizer(target: ExtractTarget, folder: Path) -> None:
    """The tokenizer, set to truncate and pad on the right as we do."""
    tokenizer = type(target.tokenizer).from_pretrained(target.files.folder, local_files_only=True)
    tokenizer.model_max_length = target.max_length
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    if tokenizer.pad_token is None:
        # Any token will do, as padding is masked.
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.bos_token
    # Arguments of our own loading would be saved, and would apply wherever the folder is loaded.
    for argument in ("local_files_only", "is_local"):
        tokenizer.init_kwargs.pop(argument, None)
    tokenizer.save_pretrained(folder)


def _write_pooling(head: LoadedHead, folder: Path) -> None:
    folder.mkdir()
    used = head.config.head.sentence_transformers_mode
    config = {"word_embedding_dimension": head.d_in} | {
        f"pooling_mode_{mode}": mode == used for mode in POOLING_MODES
    }
    (folder / "config.json").write_bytes(json_bytes(config))


def write_dense(projection: torch.nn.Linear, folder: Path) -> None:
    """A layer as the library's `Dense` keeps it, without an activation."""
    folder.mkdir()
    config = {
        "in_features": projection.in_features,
        "out_features": projection.out_features,
        "bias": True,
        "activation_function": "torch.nn.modules.linear.Identity",
    }
    (folder / "config.json").write_bytes(json_bytes(config))
    state = {"linear.weight": projection.weight, "linear.bias": projection.bias}
    save_file({k: v.cpu() for k, v in state.items()}, folder / "model.safetensors")
