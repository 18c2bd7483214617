"""Tiny models of every family, shared and to be changed."""

from collections.abc import Callable

import pytest

from permafrost.stages.extraction.backbone import Backbone, BackboneFiles, load_backbone
from tests.stages.extraction.conftest import model_folder, pair, tiny_files

__all__ = ["model_folder", "own", "pair", "tiny_files"]

Own = Callable[[str], Backbone]


@pytest.fixture
def own(tiny_files: Callable[[str], BackboneFiles]) -> Own:
    """A backbone that may be changed."""
    return lambda family: load_backbone(tiny_files(family), "float32", "cpu")
