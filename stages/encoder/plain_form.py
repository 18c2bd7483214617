"""Heads that sentence-transformers can compute by itself, as one of its model folders.

Such a head is one of the library's poolings (first or last token, mean, maximum) over a backbone's last
state, with a `Dense` on top if the head was trained on graded pairs. So are the vectors of a linear
classifier, with a `Normalize` on top if they have unit length. Under `plain` the mean over the span includes
the special tokens that the tokenizer adds, as in the library; under `plain:specials=exclude` and every other
recipe it does not, so those cannot be expressed. In an encoder whose blocks end in their norm
(BERT, RoBERTa, XLM-RoBERTa, DistilBERT, MPNet) any block can be made the last one by dropping those after
it; in others the last state is always `hidden/final`. The library keeps features in the compute dtype, so its
vectors are ours without the rounding to the store's dtype.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import save_file

from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.encoder.answers import LinearAnswers, answers_of
from permafrost.stages.encoder.digests import digests_of
from permafrost.stages.encoder.linear_form import logits, logits_layer, why_not_classes
from permafrost.stages.encoder.load import FittedHead, assemble
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors, TextVectors
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.stages.extraction.recipes.plain import PlainRecipe
from permafrost.stages.extraction.recipes.recipe import recipe_identity
from permafrost.stages.extraction.recompute import COMPUTE_NOISE
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget
from permafrost.stages.fit.models import GradedPairs, SingleClasses
from permafrost.stages.heads.head import HEADS
from permafrost.storage.durable import json_bytes
from permafrost.storage.errors import CorruptDataError, InputError
from permafrost.storage.keys import digest
from permafrost.storage.quoting import quoted

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

README = "README.md"

Use = Literal["vectors", "classifier"]
"""What a folder is for. A classifier has the head's classes, too."""

POOLING_MODES = ("cls_token", "lasttoken", "mean_tokens", "max_tokens")
"""Poolings of the library that some of our heads are equal to."""

METHOD_MODES = {
    "first": "cls_token",
    "last": "lasttoken",
    "mean": "mean_tokens",
    "max": "max_tokens",
}
"""Of methods without training that are equal to one of them. Heads say so themselves; what these classes say
is part of keys."""

ENDS_IN_ITS_NORM = ("bert", "roberta", "xlm-roberta", "distilbert", "mpnet")
"""Architectures whose state after block k is what a model with k blocks returns."""

TOLERANCE = COMPUTE_NOISE["float32"]
"""Relative difference that another batch or kernel may cause."""

_MOST_PROBE_WORDS = 2048


def obstacle(fitted: FittedHead, use: Use = "vectors") -> str | None:
    """Why sentence-transformers alone cannot compute the vectors of a head, or the logits of a classifier;
    None if it can."""
    vectors, target = fitted.vectors, fitted.target
    if isinstance(vectors, LatentVectors):
        return "sentence-transformers has no head on the latents of every layer"
    if _mode(vectors) is None:
        return f"sentence-transformers has no pooling like {_pooling(vectors)}"
    if (n_prompts := len(fitted.targets)) > 1:
        return f"sentence-transformers reads a text once, but its vector is made of {n_prompts} prompts"
    layer, *others = target.arrays
    if others:
        return f"sentence-transformers pools one layer, but {', '.join(target.arrays)} are read"
    if use == "classifier" and isinstance(vectors, LinearAnswers):
        reason = why_not_classes(vectors.model)
        if reason is not None:
            return reason
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
    # Asked last, as the tokenizer has to be loaded.
    if _padding(target.tokenizer) is None:
        return (
            "sentence-transformers pads the texts of a batch, and the tokenizer names no token to do so with "
            "(none for padding, for the end and for the beginning of a text)"
        )
    return None


def _pooling(vectors: HeadVectors | LinearAnswers) -> str:
    """What pools, and what could be in its place, for messages."""
    if isinstance(vectors, LinearAnswers):
        return f"the method {quoted(vectors.config.method.kind)}, only {', '.join(METHOD_MODES)}"
    alike = (n for n, k in HEADS.kinds().items() if k.sentence_transformers_mode is not None)
    return f"a head of kind {quoted(vectors.head.config.head.kind)}, only {', '.join(alike)}"


def _mode(vectors: HeadVectors | LinearAnswers) -> str | None:
    """The library's name of the pooling, if it has it."""
    if isinstance(vectors, LinearAnswers):
        return METHOD_MODES.get(vectors.config.method.kind)
    return vectors.head.config.head.sentence_transformers_mode


def write_plain(fitted: FittedHead, folder: Path, use: Use = "vectors") -> None:
    """Write a folder that `SentenceTransformer(folder)` loads without Permafrost.

    Its files have the format that the library has read since version 2.

    Args:
        fitted: a head without an `obstacle`.
        folder: empty.
        use: what the library's `encode` gives: vectors, or of a classifier of single texts their logits.
    """
    vectors, target = fitted.vectors, fitted.target
    assert not isinstance(vectors, LatentVectors), "a head on every layer has an obstacle"
    _write_backbone(target, target.arrays[0], folder)
    _write_tokenizer(target, folder)
    modules = ["", "1_Pooling"]
    reads = {"max_seq_length": target.max_length, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_bytes(json_bytes(reads))
    _write_pooling(_mode(vectors), target.sizes.d_model, folder / "1_Pooling")
    if isinstance(vectors, LinearAnswers) and vectors.config.normalise == "l2":
        modules.append(f"{len(modules)}_Normalize")
        (folder / modules[-1]).mkdir()
        (folder / modules[-1] / "config.json").write_bytes(json_bytes({}))
    if (layer := _layer_on_top(vectors, use)) is not None:
        modules.append(f"{len(modules)}_Dense")
        write_dense(layer, folder / modules[-1])
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


def _layer_on_top(vectors: HeadVectors | LinearAnswers, use: Use) -> torch.nn.Linear | None:
    """What is computed of a pooled vector: its projection, or the logits of a classifier of single texts."""
    if isinstance(vectors, LinearAnswers):
        return logits_layer(vectors.model) if use == "classifier" else None
    model = vectors.head.model
    if isinstance(model, GradedPairs):
        return model.projection
    if use == "classifier" and isinstance(model, SingleClasses):
        return model.classifier.linear
    return None


def plain_difference(fitted: FittedHead, folder: Path, device: str, use: Use = "vectors") -> float:
    """Load the folder with the library and compare it with our own vectors before any rounding; the logits of
    a classifier of single texts likewise.

    Returns:
        `largest_difference` over a few texts, one of them too long.

    Raises:
        InputError: sentence-transformers is not installed.
    """
    texts = probe_texts(fitted.target.max_length)
    vectors = fitted.vectors
    if use == "classifier":
        vectors = answers_of(vectors)
    ours = without_rounding(fitted.target, vectors, texts, device)
    if use == "classifier" and isinstance(vectors, LinearAnswers):
        # It answers from vectors, which are what its encoder gives.
        ours = logits(vectors.model, ours)
    return largest_difference(_by_library(folder, texts, device), ours)


def probe_texts(max_length: int) -> list[str]:
    """A few texts to compare vectors on, one of them longer than `max_length` tokens."""
    words = min(max_length, _MOST_PROBE_WORDS) + 1
    return ["Ice.", "A frozen lake, seen from above; and nothing else?", "snow and ice " * words]


def largest_difference(theirs: Vectors, ours: Vectors) -> float:
    """max |theirs - ours| / (|ours| + RMS of ours); infinite if the widths differ."""
    if theirs.shape != ours.shape:
        return float("inf")
    size = np.abs(ours) + np.sqrt(np.mean(ours.astype(np.float64) ** 2))
    return float(np.max(np.abs(theirs - ours) / size))


def without_rounding(
    target: ExtractTarget, vectors: TextVectors, texts: list[str], device: str
) -> Vectors:
    """Our vectors of texts, of features that are not rounded for a store."""
    identity = target.identity.model_copy(update={"storage_dtype": "float32"})
    exact = replace(target, identity=identity)
    return assemble((exact,), vectors, ExtractRuntime(device=device)).encode(texts)


def _by_library(folder: Path, texts: list[str], device: str) -> Vectors:
    return cast(Vectors, library_model(folder, device).encode(texts, show_progress_bar=False))


def library_model(folder: Path, device: str) -> "SentenceTransformer":
    """A folder of the plain form as the library loads it.

    Raises:
        InputError: sentence-transformers is not installed.
        CorruptDataError: it cannot load the folder.
    """
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise InputError(
            "a folder of the plain form is loaded with sentence-transformers, which is not installed here; "
            "install it, or export with --form module"
        ) from error
    chosen_device = None if device == "auto" else device
    try:
        with quiet_loading():
            return SentenceTransformer(str(folder), device=chosen_device, local_files_only=True)
    except (OSError, ValueError, SafetensorError) as error:
        raise CorruptDataError(
            f"{folder} cannot be loaded by sentence-transformers ({error}); export it again"
        ) from error


def files_digest(folder: Path) -> str:
    """Digest of the files of a folder of the plain form, but its README; mteb can tell it from others so."""
    return digest({name: found for name, found in digests_of(folder).items() if name != README})


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
        tokenizer.pad_token = _padding(tokenizer)
    # Arguments of our own loading would be saved, and would apply wherever the folder is loaded.
    for argument in ("local_files_only", "is_local"):
        tokenizer.init_kwargs.pop(argument, None)
    tokenizer.save_pretrained(folder)


def _padding(tokenizer: transformers.PreTrainedTokenizerBase) -> str | None:
    """A token to pad with: any will do, as padding is masked."""
    named = (tokenizer.pad_token, tokenizer.eos_token, tokenizer.bos_token)
    return next((str(token) for token in named if token), None)


def _write_pooling(used: str | None, width: int, folder: Path) -> None:
    folder.mkdir()
    config = {"word_embedding_dimension": width} | {
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
