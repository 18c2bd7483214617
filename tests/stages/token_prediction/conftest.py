"""Tiny decoders with their heads, loaded once: as our backbone, and by transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    find_backbone,
    load_backbone,
)
from tests.stages.token_prediction.causal_models import load_causal, save_causal


@dataclass(frozen=True)
class Decoder:
    """The same weights twice."""

    folder: Path
    backbone: Backbone
    whole: PreTrainedModel
    """transformers' language model, eager attention."""


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Decoder]:
    """Of a `model_type`."""

    @cache
    def load(model_type: str) -> Decoder:
        folder = save_causal(model_type, tmp_path_factory.mktemp("causal"))
        files = find_backbone(BackboneConfig(source=str(folder)))
        return Decoder(folder, load_backbone(files, "float32", "cpu"), load_causal(folder))

    return load
