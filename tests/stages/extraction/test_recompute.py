"""Cells computed again: to compare them with what is stored, and for repair."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants

from permafrost.stages.extraction.extract import recompute_cells
from permafrost.stages.extraction.recompute import recompute
from permafrost.stages.extraction.target import (
    ExtractRuntime,
    target_of_store,
)
from permafrost.storage.errors import HubUnreachableError, IdentityMismatchError
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import discard, verify
from permafrost.storage.features.writing import writing
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.small_extraction import (
    EVERYTHING,
    FLOAT16_NOISE,
    MORE,
    Extraction,
    rows,
)
from tests.stages.extraction.tiny_models import TEXTS, save_model


def test_recompute_agrees_with_what_is_stored(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("qwen3")
    store = run([*TEXTS, *MORE], run.target(EVERYTHING)).store
    target = target_of_store(store.record, tuple(store.arrays()), None)
    found = recompute(store, target, run.load(), 5, 0, SilentProgress())
    assert {r.array for r in found} == set(store.arrays())
    assert all(r.agrees for r in found), found
    assert any(r.difference > 0 for r in found)


def test_recompute_notices_other_numbers(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    store = run(list(TEXTS), run.target("hidden=1-2")).store
    target = target_of_store(store.record, tuple(store.arrays()), None)
    backbone = run.load()
    with torch.no_grad():
        backbone.model.encoder.layer[1].output.dense.weight.mul_(1.05)
    found = {r.array: r.agrees for r in recompute(store, target, backbone, 4, 0, SilentProgress())}
    assert found == {"hidden/1": True, "hidden/2": False, "span": True, "token_ids": True}


def test_damaged_cell_is_recomputed_alone(extraction: Callable[[str], Extraction]) -> None:
    run = extraction("bert")
    target = run.target("hidden=all")
    store = run([*TEXTS, *MORE], target).store
    good = {t: rows(store, "hidden/2", t) for t in TEXTS}
    shard = store.shard_path(1, "hidden/2")
    content = bytearray(shard.read_bytes())
    content[5] ^= 1
    shard.write_bytes(content)
    store = FeatureStore.open(store.root)
    damage = verify(store, SilentProgress())
    assert [(d.segment, d.array) for d in damage] == [(1, "hidden/2")]
    with writing(store) as writer:
        cells = discard(writer, damage)
    assert cells == {1: ("hidden/2",)}
    tokens = recompute_cells(
        store, target, cells, ExtractRuntime(device="cpu"), SilentProgress(), load=run.load
    )
    assert tokens == store.segment(1).n_tokens
    assert verify(store, SilentProgress()) == []
    for text, expected in good.items():
        np.testing.assert_allclose(
            rows(store, "hidden/2", text), expected, rtol=FLOAT16_NOISE, atol=FLOAT16_NOISE
        )


def test_repair_refuses_another_backbone(
    extraction: Callable[[str], Extraction], tmp_path: Path
) -> None:
    run = extraction("bert")
    store = run(list(TEXTS), run.target("hidden=1")).store
    other = save_model("bert", tmp_path / "other", initializer_range=0.5)
    with pytest.raises(IdentityMismatchError, match="weights_digest: store has"):
        target_of_store(store.record, ("hidden/1",), str(other))


def test_a_recorded_backbone_that_is_not_there_may_have_moved(
    extraction: Callable[[str], Extraction], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    run = extraction("bert")
    record = run(list(TEXTS), run.target("hidden=1")).store.record
    moved = record.model_copy(update={"backbone": {**record.backbone, "source": "bb"}})
    with pytest.raises(HubUnreachableError, match=r"if it moved, give its folder with --backbone"):
        target_of_store(moved, ("hidden/1",), None)
    with pytest.raises(HubUnreachableError) as told:
        target_of_store(record, ("hidden/1",), "bb")
    assert "--backbone" not in str(told.value)
