"""Tiny models of every family, loaded once: as our backbone, and by transformers with eager attention."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from transformers import AutoModel, PreTrainedModel

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
)
from tests.stages.extraction.small_extraction import Extraction
from tests.stages.extraction.tiny_models import save_model


@dataclass(frozen=True)
class Pair:
    """The same weights twice."""

    backbone: Backbone
    reference: PreTrainedModel
    """transformers' own forward pass with eager attention."""


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folder of the tiny model of a `model_type`; do not write into it."""
    return cache(lambda model_type: save_model(model_type, tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="session")
def tiny_files(model_folder: Callable[[str], Path]) -> Callable[[str], BackboneFiles]:
    """Resolved files of the tiny model of a `model_type`."""
    return cache(
        lambda model_type: find_backbone(BackboneConfig(source=str(model_folder(model_type))))
    )


@pytest.fixture(scope="session")
def pair(tiny_files: Callable[[str], BackboneFiles]) -> Callable[[str], Pair]:
    """Backbone and reference of a `model_type`."""

    @cache
    def load(model_type: str) -> Pair:
        files = tiny_files(model_type)
        reference = AutoModel.from_pretrained(files.folder, attn_implementation="eager")
        return Pair(load_backbone(files, "float32", "cpu"), reference.eval())

    return load


@pytest.fixture
def extraction(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path
) -> Callable[[str], Extraction]:
    return lambda model_type: Extraction(tiny_files(model_type), tmp_path / model_type)
