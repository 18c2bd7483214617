"""What is said of an activation that is NaN or infinite."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from permafrost.stages.extraction.non_finite import NonFiniteError, explained
from permafrost.storage.errors import PermafrostError
from tests.stages.extraction.small_extraction import Extraction
from tests.stages.extraction.tiny_models import TEXTS


def test_a_wider_dtype_is_advised_where_there_is_one(
    extraction: Callable[[str], Extraction],
) -> None:
    backbone, error = extraction("bert").load(), NonFiniteError("hidden/1")
    narrow = str(explained(error, replace(backbone, dtype=torch.float16), "nothing was stored"))
    assert "in hidden/1 (computed in float16); nothing was stored. Compute in float32" in narrow
    assert "--dtype float32" in narrow
    assert "backbone.dtype" in narrow
    wide = str(explained(error, backbone, "nothing was stored"))
    assert "(computed in float32)" in wide
    assert "--dtype" not in wide
    assert "No weight of" in wide


def test_weights_that_are_no_numbers_are_named(
    extraction: Callable[[str], Extraction], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = extraction("bert")
    backbone = run.load()
    name, weight = [*backbone.model.named_parameters()][3]
    weight.data.view(-1)[-1] = float("nan")
    monkeypatch.setattr(run, "load", lambda: backbone)
    with pytest.raises(PermafrostError, match=f"hold NaN or infinity, {name} first"):
        run(list(TEXTS), run.target("hidden=1"))
