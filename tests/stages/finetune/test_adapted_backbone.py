"""A tuned backbone as a model folder: the tuned one to rounding, and known by its weights alone."""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from permafrost.stages.extraction.backbone import (
    Backbone,
    BackboneConfig,
    BackboneFiles,
    find_backbone,
    load_backbone,
)
from permafrost.stages.extraction.forward import forward
from permafrost.stages.finetune.adapted_backbone import (
    adapted_files,
    load_tuned_weights,
    write_adapted,
)
from permafrost.stages.finetune.tuned import Tuned
from permafrost.stages.finetune.tuning import TUNINGS
from permafrost.storage.errors import CorruptDataError, InputError, NotFoundError
from tests.stages.extraction.references import close, encoded, resolved

Files = Callable[[str], BackboneFiles]
TRAINED: dict[str, dict[str, Any]] = {
    "lora": {"kind": "lora", "r": 2, "alpha": 4},
    "full": {"kind": "full"},
    "last_blocks": {"kind": "last_blocks", "n": 1},
}
EVERYTHING = ["hidden/0", "hidden/1", "hidden/3", "values/2", "attention_rows/3"]


def changed(tuned: Tuned, seed: int) -> dict[str, Tensor]:
    """As after some training: by the names that it saves weights under."""
    draw = torch.Generator().manual_seed(seed)
    found: dict[str, Tensor] = {}
    for name, weight in tuned.weights.items():
        with torch.no_grad():
            weight.add_(0.1 * torch.randn(weight.shape, generator=draw))
        found[name.replace("/", ".")] = weight.detach().clone()
    return found


def fine_tuning(
    files: BackboneFiles, folder: Path, train: str, seed: int = 1, dtype: str = "float32"
) -> Backbone:
    """The artifact of one in a folder; returns the tuned backbone itself."""
    backbone = load_backbone(files, dtype, "cpu")
    tuning = TUNINGS.validate(TRAINED[train])
    tuned = tuning.attach(backbone, torch.Generator().manual_seed(seed))
    assert tuned is not None
    weights = changed(tuned, seed)
    (folder / "backbone").mkdir(parents=True)
    tuned.save(folder / "backbone", weights)
    tuned.eval().requires_grad_(False)
    # A kind without other fields is written as its name alone.
    dumped: Any = TRAINED[train] if len(TRAINED[train]) > 1 else train
    (folder / "finetune.json").write_text(json.dumps({"config": {"train": dumped}}))
    return backbone


def adapt(files: BackboneFiles, folder: Path, train: str, seed: int = 1) -> Backbone:
    """A fine-tuning and the adapted backbone under one folder."""
    tuned = fine_tuning(files, folder / "fit", train, seed)
    (folder / "adapted").mkdir()
    write_adapted(load_tuned_weights(folder / "fit"), files, "float32", folder / "adapted")
    return tuned


def digests(folder: Path) -> dict[str, str]:
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file()
    }


def captured(backbone: Backbone) -> Mapping[str, Tensor]:
    return forward(backbone, encoded(backbone), EVERYTHING, resolved(backbone, "plain"))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "train"),
    [
        *((family, "lora") for family in ("bert", "gpt2", "llama", "phi3")),
        *(("llama", train) for train in ("full", "last_blocks")),
    ],
)
def test_an_adapted_backbone_is_the_tuned_one_to_rounding(
    tiny_files: Files, tmp_path: Path, family: str, train: str
) -> None:
    files = tiny_files(family)
    before = digests(files.folder)
    tuned = adapt(files, tmp_path, train)
    assert digests(files.folder) == before, "nothing of the base changes"
    found = adapted_files(tmp_path / "adapted")
    assert found.tokenizer_digest == files.tokenizer_digest
    assert found.weights_digest != files.weights_digest
    loaded = load_backbone(found, "float32", "cpu")
    names = {name for name, _ in load_backbone(files, "float32", "cpu").model.named_parameters()}
    assert {name for name, _ in loaded.model.named_parameters()} == names, "no adapters are left"
    ours, theirs = captured(loaded), captured(tuned)
    exact = train != "lora"
    for array, rows in ours.items():
        same = torch.equal(rows, theirs[array]) if exact else close(rows, theirs[array])
        assert same, array
    base = captured(load_backbone(files, "float32", "cpu"))
    assert not close(ours["hidden/3"], base["hidden/3"])


def test_equal_weights_are_one_backbone_wherever_they_lie(
    tiny_files: Files, tmp_path: Path
) -> None:
    files = tiny_files("llama")
    for name, seed in (("one", 1), ("again", 1), ("other", 2)):
        adapt(files, tmp_path / name, "lora", seed)
    one, again, other = (adapted_files(tmp_path / n / "adapted") for n in ("one", "again", "other"))
    assert one.weights_digest == again.weights_digest
    assert other.weights_digest != one.weights_digest
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(one.folder, elsewhere)
    assert find_backbone(BackboneConfig(source=str(elsewhere))).weights_digest == one.weights_digest


def test_one_in_half_precision_is_merged_in_it(tiny_files: Files, tmp_path: Path) -> None:
    files = tiny_files("llama")
    tuned = fine_tuning(files, tmp_path / "fit", "lora", dtype="bfloat16")
    (tmp_path / "adapted").mkdir()
    weights = load_tuned_weights(tmp_path / "fit")
    write_adapted(weights, files, "bfloat16", tmp_path / "adapted")
    found = adapted_files(tmp_path / "adapted")
    stored = load_file(found.folder / "model.safetensors")
    assert {w.dtype for w in stored.values()} == {torch.bfloat16}
    ours = captured(load_backbone(found, "bfloat16", "cpu"))["hidden/3"].float()
    theirs = captured(tuned)["hidden/3"].float()
    assert (ours - theirs).abs().max() < 0.1 * theirs.abs().max()


def test_what_is_no_fine_tuning_is_told(tiny_files: Files, tmp_path: Path) -> None:
    files = tiny_files("llama")
    with pytest.raises(
        NotFoundError, match=r"holds no tuned backbone: .*finetune\.json is missing"
    ):
        load_tuned_weights(tmp_path)
    fit = tmp_path / "fit"
    fine_tuning(files, fit, "lora")
    record, weights = fit / "finetune.json", fit / "backbone" / "adapter_model.safetensors"
    whole = load_file(weights)
    some = {name: value for name, value in whole.items() if "layers.1" not in name}
    save_file(some, weights, metadata={"format": "pt"})
    (tmp_path / "adapted").mkdir()
    with pytest.raises(CorruptDataError, match="of those that lora trains are missing"):
        write_adapted(load_tuned_weights(fit), files, "float32", tmp_path / "adapted")
    weights.write_bytes(b"no weights")
    with pytest.raises(CorruptDataError, match=r"tuned backbone in .* is damaged"):
        load_tuned_weights(fit)
    record.write_text('{"config": {"train": {"kind": "unheard_of"}}}')
    with pytest.raises(InputError, match="unheard_of"):
        load_tuned_weights(fit)
