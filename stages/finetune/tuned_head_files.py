"""A head trained together with its backbone, as files: the head as any other, and beside it what was trained
of the backbone."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.finetune.tuned import TUNED, joined_state, split_state
from permafrost.stages.finetune.tuned_head import TunedHeadResult
from permafrost.stages.finetune.tuned_head_config import TunedHeadConfig
from permafrost.stages.fit.grid import flat
from permafrost.stages.fit.trained import LoadedHead, load_head
from permafrost.stages.kinds import require_known
from permafrost.storage.errors import CorruptDataError, NotFoundError

FORMAT = 1
RECORD, BACKBONE, DRAWN = "finetune.json", "backbone", "drawn.safetensors"


def save_tuned_head(result: TunedHeadResult, folder: Path) -> None:
    """Write what a fit writes, finetune.json, and what was trained of the backbone in a folder `backbone`."""
    result.fit.save(folder)
    state = {f"{TUNED}{name}": value for name, value in result.backbone.items()}
    drawn, weights = split_state(state)
    if result.tuned is not None:
        (folder / BACKBONE).mkdir()
        result.tuned.save(folder / BACKBONE, weights)
    save_file(drawn, folder / DRAWN)
    record = {
        "format": FORMAT,
        "config": result.config.model_dump(mode="json"),
        "n_backbone_parameters": result.n_tuned,
        "n_with_gradient": result.n_reached,
        "at_a_time": result.at_a_time,
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


@dataclass(frozen=True)
class TunedHead:
    """A trained head, and what its backbone has to become."""

    config: TunedHeadConfig
    head: LoadedHead
    n_backbone_parameters: int
    """Trained parameters of the backbone."""
    n_with_gradient: int
    """Those of them that got a gradient."""
    state: Mapping[str, Tensor]
    """Of the backbone's trained part."""

    @property
    def choice(self) -> dict[str, JsonValue]:
        """What of the backbone is trained and how, by dotted name, for tables."""
        settings = dict(flat(self.config.model_dump(mode="json", include={"train", "optim"})))
        return settings | {"train.n_with_gradient": self.n_with_gradient}

    def tune(self, backbone: Backbone) -> None:
        """Change a backbone, the caller's own, to what it was at the chosen epoch."""
        tuned = self.config.train.attach(backbone, torch.Generator())
        if tuned is not None:
            state = {name.removeprefix(TUNED): value for name, value in self.state.items()}
            tuned.load_state_dict(state)
            tuned.eval().requires_grad_(False)


def load_tuned_head(folder: Path) -> TunedHead:
    """Load what `save_tuned_head` wrote.

    Raises:
        NotFoundError: the folder holds no such head.
        InputError: it is of a kind that is not known here.
        CorruptDataError: its files do not describe one.
    """
    head = load_head(folder)
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']}")
        config = TunedHeadConfig.model_validate(record["config"])
        state = joined_state(load_file(folder / DRAWN), config.train.load(folder / BACKBONE))
        counts = record["n_backbone_parameters"], record["n_with_gradient"]
        return TunedHead(config, head, *counts, state)
    except FileNotFoundError as error:
        raise NotFoundError(
            f"{folder} holds no head with a tuned backbone: {error.filename} is missing"
        ) from error
    except (ValueError, KeyError, TypeError, SafetensorError) as error:
        if isinstance(error, ValidationError):
            require_known(error, f"the head in {folder}")
        raise CorruptDataError(
            f"the head with a tuned backbone in {folder} is damaged ({type(error).__name__}: {error}); "
            "delete the artifact and run the fine-tuning again"
        ) from error


def holds_tuned_head(folder: Path) -> bool:
    """Whether the folder of a fine-tuning holds a head, as opposed to a model of another kind."""
    return all((folder / name).is_file() for name in (RECORD, DRAWN))
