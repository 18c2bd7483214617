"""A backbone with what a fine-tuning made of it, as a model folder of its own.

The folder is what transformers loads by itself, so that everything which reads a backbone reads this one: its
digest is its identity, wherever a copy of it lies. Adapters are merged into the weights by peft.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.files import (
    CONFIG,
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    tokenizer_files,
)
from permafrost.stages.extraction.quiet import quiet_loading
from permafrost.stages.finetune.tuned import TUNED, Tuned, joined_state
from permafrost.stages.finetune.tuned_head_files import BACKBONE, RECORD
from permafrost.stages.finetune.tuning import Tuning, TuningConfig
from permafrost.stages.kinds import require_known
from permafrost.storage.adapted_stores import MODEL
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.identity import FloatName

_TUNING: TypeAdapter[Tuning] = TypeAdapter(TuningConfig)


@dataclass(frozen=True)
class TunedWeights:
    """What a fine-tuning made of a backbone, whatever was trained on top of it."""

    train: Tuning
    weights: Mapping[str, Tensor]
    """By the names that the kind of tuning saves them under."""

    def tune(self, backbone: Backbone) -> Tuned | None:
        """Change a backbone, the caller's own, to what it was at the chosen epoch."""
        tuned = self.train.attach(backbone, torch.Generator())
        if tuned is not None:
            state = {
                name.removeprefix(TUNED): value
                for name, value in joined_state({}, self.weights).items()
            }
            # What else is in its state, such as counts of draws, is for training only.
            left_out = tuned.load_state_dict(state, strict=False)
            missing = [name for name in left_out.missing_keys if name.startswith("weights.")]
            if missing or left_out.unexpected_keys:
                raise CorruptDataError(
                    f"the fine-tuning has weights of {len(state)} names, but {len(missing)} of those that "
                    f"{self.train.kind} trains are missing and {len(left_out.unexpected_keys)} are of no "
                    "layer of this backbone; delete the artifact and run the fine-tuning again"
                )
            tuned.eval().requires_grad_(False)
        return tuned


def load_tuned_weights(folder: Path) -> TunedWeights:
    """What of the backbone the artifact of a fine-tuning holds.

    Raises:
        NotFoundError: the folder holds no fine-tuning.
        InputError: it is of a kind that is not known here.
        CorruptDataError: its files do not describe one.
    """
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        train = _TUNING.validate_python(record["config"]["train"])
        return TunedWeights(train, train.load(folder / BACKBONE))
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} holds no tuned backbone: {error.filename} is missing"
        ) from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, ValidationError):
            require_known(error, f"the fine-tuning in {folder}")
        raise CorruptDataError(
            f"the tuned backbone in {folder} is damaged ({type(error).__name__}: {error}); delete the "
            "artifact and run the fine-tuning again"
        ) from error


def write_adapted(
    tuned: TunedWeights, files: BackboneFiles, dtype: FloatName, folder: Path
) -> None:
    """Write a backbone as it is after a fine-tuning; nothing on disk of the one it was trained from changes.

    Config and tokenizer are copied byte by byte, so that equal weights are an equal backbone whatever wrote
    them.

    Args:
        tuned: what was trained.
        files: of the backbone that was trained.
        dtype: in which it was trained, and the weights are written; adapters are merged in it.
        folder: of an artifact; the model goes into its folder `model`.

    Raises:
        InputError: the backbone cannot be loaded.
        CorruptDataError: the weights are those of another backbone.
    """
    backbone = load_backbone(files, dtype, "cpu")
    trained = tuned.tune(backbone)
    if trained is not None:
        trained.merge()
    model = folder / MODEL
    model.mkdir()
    with quiet_loading():
        backbone.model.save_pretrained(model)
    # What it wrote of the config names the version of transformers, and how we load models.
    for name in (CONFIG, *tokenizer_files(files.folder)):
        shutil.copyfile(files.folder / name, model / name)


def adapted_files(folder: Path) -> BackboneFiles:
    """The files and digests of a backbone that `write_adapted` wrote into the folder `model` of an artifact.

    Raises:
        InputError: files are missing.
    """
    return find_backbone(BackboneConfig(source=str(folder / MODEL)))
