"""Batches that run out of memory are split, and the run goes on."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from permafrost.stages.extraction import computing
from permafrost.stages.extraction.backbone import Backbone, BackboneFiles
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.memory import is_out_of_memory
from permafrost.stages.extraction.recipes import Encoded, Recipe
from permafrost.stages.extraction.recording import Keep
from permafrost.stages.extraction.target import ExtractRuntime
from permafrost.storage.errors import PermafrostError
from permafrost.storage.features.receipts import read_receipt
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import SilentProgress
from tests.stages.extraction.small_extraction import MORE, Extraction, rows
from tests.stages.extraction.tiny_models import TEXTS

ALL = [*TEXTS, *MORE]
WHOLE = ExtractRuntime(device="cpu", batch_tokens=4096)


class SmallDevice:
    """Stands in for the forward pass: runs out of memory above a number of padded tokens."""

    def __init__(self, room: int, error: Callable[[], Exception]) -> None:
        self.room, self.error = room, error
        self.sizes: list[int] = []
        self.failed = 0

    def __call__(
        self, backbone: Backbone, encoded: Encoded, arrays: list[str], recipe: Recipe, keep: Keep
    ) -> dict[str, torch.Tensor]:
        size = len(encoded) * int(encoded.token_ids.lengths.max())
        self.sizes.append(size)
        if size > self.room:
            # Half of the pass is recorded by the time it fails.
            forward(backbone, encoded, arrays[:1], recipe, keep)
            self.failed += 1
            raise self.error()
        return forward(backbone, encoded, arrays, recipe, keep)


def _on_device() -> Exception:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def _on_host() -> Exception:
    return RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")


@pytest.fixture
def run(tiny_files: Callable[[str], BackboneFiles], tmp_path: Path) -> Extraction:
    return Extraction(tiny_files("bert"), tmp_path / "bert")


@pytest.mark.parametrize("error", [_on_device, _on_host])
def test_rows_are_those_of_an_undisturbed_run(
    run: Extraction,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Callable[[], Exception],
) -> None:
    target = run.target("hidden=all,hidden=2@mean", store_dtype="float32")
    whole = run(ALL, target, WHOLE)
    assert whole.split_from is None
    run.home = tmp_path / "small"
    device = SmallDevice(60, error)
    monkeypatch.setattr(computing, "forward", device)
    split = run(ALL, target, WHOLE)
    assert device.failed, "nothing ran out of memory, so nothing was tested"
    assert split.n_tokens == whole.n_tokens
    assert verify(split.store, SilentProgress()) == []
    for text in ALL:
        for array in target.arrays:
            np.testing.assert_allclose(
                rows(split.store, array, text),
                rows(whole.store, array, text),
                rtol=2e-5,
                atol=2e-5,
            )


def test_a_size_that_failed_is_not_tried_again(
    run: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SmallDevice(40, _on_device)
    monkeypatch.setattr(computing, "forward", device)
    report = run(ALL, run.target("hidden=1"), WHOLE)
    assert report.n_segments > 2, "one segment would have nothing to remember for"
    failed = [size for size in device.sizes if size > device.room]
    assert failed == sorted(failed, reverse=True), "every failure is below the one before"
    assert len(failed) == len(set(failed))
    assert report.split_from == min(failed)
    last = read_receipt(report.store.root, report.store.segments()[-1], "hidden/1")
    assert last.provenance["split_from_padded_tokens"] == str(min(failed))


def test_a_text_that_does_not_fit_alone_ends_the_run(
    run: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = run.target("hidden=1")
    with monkeypatch.context() as patch:
        patch.setattr(computing, "forward", SmallDevice(15, _on_device))
        with pytest.raises(PermafrostError, match=r"text of 2\d tokens alone.*--dtype") as error:
            run(ALL, target, WHOLE)
    assert "2.00 GiB" in str(error.value)
    assert not is_out_of_memory(error.value), "a stage is tried again after those"
    store = FeatureStore.open(store_folder(run.home, target.identity.store_id))
    assert not list(store.root.rglob(".draft-*"))
    assert run(ALL, target).n_cells > 0


def test_other_errors_are_not_taken_for_missing_memory(
    run: Extraction, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = SmallDevice(15, lambda: RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    monkeypatch.setattr(computing, "forward", device)
    with pytest.raises(RuntimeError, match="mat1"):
        run(ALL, run.target("hidden=1"), WHOLE)
    assert device.failed == 1


def test_receipts_of_a_run_with_room_say_nothing(run: Extraction) -> None:
    store = run(list(TEXTS), run.target("hidden=1")).store
    receipt = json.loads((store.root / "receipts" / "000000" / "hidden" / "1.json").read_text())
    assert "split_from_padded_tokens" not in receipt["provenance"]
