"""Captures of every family and of every recipe that alters the pass, on a GPU against the CPU's numbers.

The CPU's numbers are held against transformers' own in tests/stages/extraction.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from permafrost.stages.extraction.backbone import Backbone, BackboneFiles, load_backbone
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.families import FAMILIES
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.recipes import Encoded
from tests.gpu.agreement import further_off
from tests.gpu.devices import checked_device
from tests.stages.extraction.references import (
    DECODERS,
    EVERYTHING,
    FITTING,
    ROW_TOLERANCE,
    encoded,
    resolved,
)
from tests.stages.extraction.tiny_models import TEXTS

DEVICE = checked_device()
PROMPTS = 'template=so "{text}" is:,auxiliary=beside "{text}":'
ALTERED = (
    "token_prepending:start=1,stop=2",
    "htp:block=tokens,size=4,start=1,stop=2",
    f"contrastive:block=2,mode=norm,{PROMPTS}",
)
"""One recipe of each kind that changes states on the way."""
LEAST = {"float32": ROW_TOLERANCE, "bfloat16": 2**-7}
"""Rounding of the last steps, where the CPU happens to be exact; of bfloat16 eps."""
WIDER = {"float32": torch.float64, "bfloat16": torch.float32}
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


def agree(load: Load, family: str, dtype: str, recipe: str, texts: Sequence[str]) -> None:
    """Device and CPU against the CPU in a wider dtype, with the same weights."""
    on_cpu = load(family, dtype, "cpu")
    exact = load_backbone(on_cpu.files, dtype, "cpu")
    cast(nn.Module, exact.model).to(WIDER[dtype])
    batch = encoded(on_cpu, recipe, texts)
    ours = captured(load(family, dtype, DEVICE), batch, recipe)
    theirs = captured(on_cpu, batch, recipe)
    assert not further_off(ours, theirs, captured(exact, batch, recipe), LEAST[dtype])


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_family_gives_the_numbers_of_the_cpu(load: Load, family: str, dtype: str) -> None:
    agree(load, family, dtype, "plain", TEXTS)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("recipe", ALTERED)
def test_an_altered_pass_gives_the_numbers_of_the_cpu(load: Load, family: str, recipe: str) -> None:
    agree(load, family, "float32", recipe, SHORT if recipe.startswith("contrastive") else FITTING)
