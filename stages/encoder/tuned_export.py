"""What is exported of a head that was trained with its backbone: both as any head, or the adapters alone."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from permafrost.stages.encoder.load import FittedHead
from permafrost.stages.encoder.model_card import source_name
from permafrost.stages.encoder.plain_form import largest_difference, probe_texts, without_rounding
from permafrost.stages.encoder.tuned import FittedTuned, TunedEncoder
from permafrost.stages.encoder.vectors import HeadVectors
from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.capture import ArrayName
from permafrost.stages.finetune.adapted_backbone import (
    adapted_files,
    load_tuned_weights,
    write_adapted,
)
from permafrost.stages.finetune.adapters import load_as_peft
from permafrost.stages.finetune.tuned_head_files import BACKBONE
from permafrost.storage.durable import json_bytes
from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

ADAPTER_CONFIG = "adapter_config.json"
"""As peft names it."""


def require_one_array(fitted: FittedTuned) -> None:
    """Raises: InputError: the head reads several arrays at once, for which exported folders have no place."""
    layer = fitted.tuned.head.layer
    try:
        ArrayName.parse(layer)
    except InputError as error:
        raise InputError(
            f"{fitted.ref} reads {quoted(layer)}, several arrays at once, for which a folder of "
            "sentence-transformers has no place; export what was trained of its backbone with --form peft, "
            f"or embed with 'permafrost embed --head {fitted.ref}'"
        ) from error


def merged(fitted: FittedTuned, scratch: Path) -> FittedHead:
    """The head on its backbone as it is after training, like any other head.

    Args:
        fitted: what was trained.
        scratch: an empty folder, into which the backbone is written.

    Raises:
        InputError: the backbone cannot be loaded.
    """
    base = fitted.base
    write_adapted(
        load_tuned_weights(fitted.folder), base.files, base.identity.compute_dtype, scratch
    )
    # By what it was made of, as the folder is gone soon.
    name = f"{source_name(base.files)} tuned by {fitted.ref}"
    files = replace(adapted_files(scratch), source=name)
    digests = {
        "weights_digest": files.weights_digest,
        "tokenizer_digest": files.tokenizer_digest,
    }
    target = replace(
        base,
        files=files,
        identity=base.identity.model_copy(update=digests),
    )
    vectors = HeadVectors(fitted.tuned.head)
    return FittedHead(fitted.ref, fitted.folder, vectors, (target,), fitted.code)


def merge_difference(fitted: FittedTuned, whole: FittedHead, device: str) -> float | None:
    """How far vectors of merged weights are from those that the head was scored with, whose adapters are
    float32 beside weights in half precision; see `largest_difference`. None for a backbone in float32, and
    where none of it was trained.

    Args:
        fitted: what was trained.
        whole: `merged` of it.
        device: where both run.

    Raises:
        InputError: the backbone cannot be loaded.
    """
    base = fitted.base
    has_adapters = (fitted.folder / BACKBONE / ADAPTER_CONFIG).is_file()
    if base.identity.compute_dtype == "float32" or not has_adapters:
        return None
    texts = probe_texts(base.max_length)
    scored = _vectors(fitted, texts, device, fitted.tuned.tune)
    return largest_difference(without_rounding(whole.target, whole.vectors, texts, device), scored)


def peft_difference(fitted: FittedTuned, device: str) -> float | None:
    """How far vectors of the adapters as peft loads them are from those that the head was scored with: norms
    that were trained are float32 there, and peft rounds them to the backbone's half precision; see
    `largest_difference`. None for a backbone in float32, and where no norms were trained.

    Args:
        fitted: what was trained, with adapters.
        device: where both run.

    Raises:
        InputError: the backbone cannot be loaded.
    """
    base, source = fitted.base, fitted.folder / BACKBONE
    norms = json.loads((source / ADAPTER_CONFIG).read_text(encoding="utf-8"))["modules_to_save"]
    if base.identity.compute_dtype == "float32" or not norms:
        return None
    texts = probe_texts(base.max_length)
    scored = _vectors(fitted, texts, device, fitted.tuned.tune)
    return largest_difference(
        _vectors(fitted, texts, device, partial(load_as_peft, folder=source)), scored
    )


def _vectors(
    fitted: FittedTuned, texts: Sequence[str], device: str, tune: Callable[[Backbone], None]
) -> Float32[np.ndarray, "n d"]:
    """Vectors of the backbone that `tune` changed. A function of its own, so that one backbone at a time is
    in memory."""
    base = fitted.base
    backbone = load_backbone(base.files, base.identity.compute_dtype, device)
    tune(backbone)
    return TunedEncoder(backbone, fitted).encode(texts)


def write_adapters(fitted: FittedTuned, folder: Path) -> None:
    """Write what `peft.PeftModel.from_pretrained` loads onto the backbone; its config names the backbone.

    Args:
        fitted: what was trained.
        folder: empty.

    Raises:
        InputError: the backbone's own weights were trained, or nothing of it.
    """
    source = fitted.folder / BACKBONE
    train = fitted.tuned.config.train
    if not (source / ADAPTER_CONFIG).is_file():
        raise InputError(
            f"{fitted.ref} was trained with 'train: {train.kind}', which makes no adapters for peft; export "
            "the whole backbone with --form plain or module"
        )
    for path in sorted(source.iterdir()):
        shutil.copyfile(path, folder / path.name)
    settings = json.loads((source / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    files = fitted.base.files
    where = str(files.folder) if files.revision is None else files.source
    # With the task, peft finds the class of the backbone by itself.
    settings |= {
        "base_model_name_or_path": where,
        "revision": files.revision,
        "task_type": "FEATURE_EXTRACTION",
    }
    (folder / ADAPTER_CONFIG).write_bytes(json_bytes(settings))
