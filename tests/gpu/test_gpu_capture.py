"""Captures of every family and of every recipe that alters the pass, on a GPU against the CPU's numbers.

The CPU's numbers are held against transformers' own in tests/stages/extraction.
"""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor

from stages.extraction.backbone import Backbone, BackboneFiles, load_backbone
from stages.extraction.capture import parse_capture
from stages.extraction.families import FAMILIES
from stages.extraction.forward import forward
from stages.extraction.recipes import Encoded
from tests.gpu.devices import checked_device
from tests.stages.extraction.references import (
    BF16_TOLERANCE,
    DECODERS,
    EVERYTHING,
    FITTING,
    ROW_TOLERANCE,
    STATE_TOLERANCE,
    close,
    encoded,
    resolved,
)

DEVICE = checked_device()
PROMPTS = 'template=so "{text}" is:,auxiliary=beside "{text}":'
ALTERED = (
    "token_prepending:start=1,stop=2",
    "htp:block=tokens,size=4,start=1,stop=2",
    f"contrastive:block=2,mode=norm,{PROMPTS}",
)
"""One recipe of each kind that changes states on the way."""
SHORT = ("ice", "the lake freezes", "snow !")

Load = Callable[[str, str, str], Backbone]


@pytest.fixture(scope="module")
def load(tiny_files: Callable[[str], BackboneFiles]) -> Load:
    """The tiny backbone of a family in a dtype on a device."""
    return cache(lambda family, dtype, device: load_backbone(tiny_files(family), dtype, device))


def captured(backbone: Backbone, batch: Encoded, recipe: str = "plain") -> dict[str, Tensor]:
    """Everything that can be stored, on the CPU."""
    arrays = parse_capture(EVERYTHING).arrays(backbone.sizes)
    found = forward(backbone, batch, arrays, resolved(backbone, recipe))
    assert all(rows.device.type == torch.device(DEVICE).type for rows in found.values()) or (
        backbone.device.type == "cpu"
    )
    return {name: rows.float().cpu() for name, rows in found.items()}


def agree(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Rows of weights absolutely, states relative to the largest."""
    assert ours.keys() == theirs.keys()
    for name, rows in ours.items():
        bound = tolerance if "attention_rows" not in name else max(tolerance / 4, ROW_TOLERANCE)
        assert close(rows, theirs[name], bound), name


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", STATE_TOLERANCE), ("bfloat16", BF16_TOLERANCE)]
)
def test_a_family_gives_the_numbers_of_the_cpu(
    load: Load, family: str, dtype: str, tolerance: float
) -> None:
    on_device, on_cpu = load(family, dtype, DEVICE), load(family, dtype, "cpu")
    batch = encoded(on_cpu)
    agree(captured(on_device, batch), captured(on_cpu, batch), tolerance)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("recipe", ALTERED)
def test_an_altered_pass_gives_the_numbers_of_the_cpu(load: Load, family: str, recipe: str) -> None:
    on_device, on_cpu = load(family, "float32", DEVICE), load(family, "float32", "cpu")
    batch = encoded(on_cpu, recipe, SHORT if recipe.startswith("contrastive") else FITTING)
    agree(captured(on_device, batch, recipe), captured(on_cpu, batch, recipe), STATE_TOLERANCE)
