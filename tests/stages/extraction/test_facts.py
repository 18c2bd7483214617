"""What is kept of a backbone, so that a plan imports neither transformers nor torch."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from permafrost.stages.extraction import backbone, facts
from permafrost.stages.extraction.facts import BackboneFacts, facts_of, max_length_of
from permafrost.stages.extraction.files import BackboneConfig, BackboneFiles, find_backbone
from permafrost.storage.errors import InputError
from permafrost.storage.paths import cache_folder


@pytest.fixture
def folder(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A model in a folder of its own, and an empty cache."""
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))
    return Path(shutil.copytree(tiny_files("llama").folder, tmp_path / "model"))


def found(folder: Path) -> BackboneFacts:
    return facts_of(find_backbone(BackboneConfig(source=str(folder))))


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Folders whose tokenizer was loaded."""
    loaded: list[Path] = []
    load = backbone.load_tokenizer

    def loading(files: BackboneFiles) -> Any:
        loaded.append(files.folder)
        return load(files)

    monkeypatch.setattr(backbone, "load_tokenizer", loading)
    return loaded


def test_what_was_kept_is_what_was_read(folder: Path, read: list[Path]) -> None:
    first = found(folder)
    assert read == [folder]
    files = find_backbone(BackboneConfig(source=str(folder)))
    tokenizer = backbone.load_tokenizer(files)
    assert first.sizes == backbone.read_sizes(files)
    assert first.n_special == tokenizer.num_special_tokens_to_add(pair=False)
    assert first.stated == tokenizer.model_max_length
    read.clear()
    assert found(folder) == first
    assert read == []


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("tokenizer_config.json", "model_max_length", 17),
        ("config.json", "max_position_embeddings", 40),
    ],
)
def test_other_files_are_read_anew(
    folder: Path, read: list[Path], file: str, field: str, value: int
) -> None:
    before = found(folder)
    fields = json.loads((folder / file).read_text()) | {field: value}
    (folder / file).write_text(json.dumps(fields))
    after = found(folder)
    assert read == [folder, folder]
    assert after != before
    assert value in (after.stated, after.sizes.max_positions)


def test_another_version_of_a_library_or_of_our_code_reads_them_anew(
    folder: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    found(folder)
    monkeypatch.setattr(facts, "versions", lambda: ("0.0",))
    found(folder)
    assert read == [folder, folder]
    monkeypatch.setattr(facts, "_reading", lambda: "edited")
    found(folder)
    assert read == [folder, folder, folder]


def test_what_is_damaged_in_the_cache_is_not_used(folder: Path, read: list[Path]) -> None:
    first = found(folder)
    (file,) = (cache_folder() / "backbones").iterdir()
    file.write_bytes(file.read_bytes().replace(b'"n_layers":', b'"n_layers":1'))
    assert found(folder) == first
    assert read == [folder, folder]


def test_a_refusal_is_not_kept(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 3}))
    for _ in range(2):
        with pytest.raises(InputError):
            found(folder)
    assert not (cache_folder() / "backbones").exists()


def test_the_length_is_the_smallest_limit(folder: Path) -> None:
    known = found(folder)
    config = BackboneConfig(source=str(folder))
    assert max_length_of(config, known) == min(known.sizes.max_positions, 512, known.stated)
    asked = config.model_copy(update={"max_length": known.sizes.max_positions + 1})
    with pytest.raises(InputError, match=f"max_length is {asked.max_length}, but the backbone"):
        max_length_of(asked, known)
