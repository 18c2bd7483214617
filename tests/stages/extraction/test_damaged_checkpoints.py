"""A damaged checkpoint is refused before anything is loaded, in a few words that name the file."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from permafrost.stages.extraction.backbone import load_backbone
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.extraction.target import resolve_backbone
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import save_model

Damage = Callable[[Path], object]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Whole checkpoints by family; read only."""
    root = tmp_path_factory.mktemp("models")
    return {kind: save_model(kind, root / kind) for kind in ("bert", "llama")}


def _changed(name: str, **fields: Any) -> Damage:
    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(content | fields))

    return damage


def _config(**fields: Any) -> Damage:
    return _changed("config.json", **fields)


def _holds(name: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / name).write_bytes(data)


def _cut(name: str, share: float) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return damage


def _index(weight_map: Any) -> Damage:
    def damage(folder: Path) -> None:
        (folder / "model.safetensors").rename(folder / "a.safetensors")
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))

    return damage


def _is_folder(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


DAMAGE: dict[str, tuple[str, Damage]] = {
    **{
        f"{name} {value}"[:60]: ("bert", _config(**{name: value}))
        for name in ("num_attention_heads", "hidden_size", "num_hidden_layers", "vocab_size")
        for value in (0, -1, 10**30, None)
    },
    "a million layers": ("bert", _config(num_hidden_layers=10**6)),
    "another width": ("bert", _config(hidden_size=64)),
    "heads that do not divide": ("bert", _config(num_attention_heads=5)),
    "no positions": ("bert", _config(max_position_embeddings=0)),
    "heads of keys that do not divide": ("llama", _config(num_key_value_heads=3)),
    "no heads of keys": ("llama", _config(num_key_value_heads=0)),
    "a head of no width": ("llama", _config(head_dim=0)),
    "an unknown activation": ("llama", _config(hidden_act="nope" * 5_000)),
    "an activation that is a number": ("bert", _config(hidden_act=5)),
    "an unknown rope type": (
        "llama",
        _config(rope_parameters={"rope_type": "nope", "rope_theta": 10_000.0}),
    ),
    "rope parameters that are a number": ("llama", _config(rope_parameters=5)),
    "padding beyond the vocabulary": ("llama", _config(pad_token_id=10**6)),
    "an unknown kind of layer": ("llama", _config(layer_types=["nope"])),
    **{
        f"{name}, {what}": ("bert", damage)
        for name in ("config.json", "tokenizer.json")
        for what, damage in {
            "empty": _holds(name, ""),
            "cut": _cut(name, 0.5),
            "not text": _holds(name, b"\xff\xfe\x00"),
            "a list": _holds(name, "[]"),
            "nested": _holds(name, "[" * 100_000),
            "long integer": _holds(name, '{"a": ' + "9" * 5_000 + "}"),
            "a folder": _is_folder(name),
        }.items()
    },
    "tokenizer_config.json, cut": ("bert", _cut("tokenizer_config.json", 0.5)),
    "tokenizer_config.json, nested": ("bert", _holds("tokenizer_config.json", "[" * 100_000)),
    "a length that is text": ("bert", _changed("tokenizer_config.json", model_max_length="x")),
    "a length of nothing": ("bert", _changed("tokenizer_config.json", model_max_length=0)),
    "tokens that are numbers": ("bert", _changed("tokenizer_config.json", added_tokens_decoder=5)),
    "a tokenizer without a model": ("bert", _changed("tokenizer.json", model=None)),
    "an unknown post-processor": ("bert", _changed("tokenizer.json", post_processor={"type": "x"})),
    "weights cut": ("bert", _cut("model.safetensors", 0.9)),
    "weights empty": ("bert", _cut("model.safetensors", 0)),
    "weights of another kind": ("bert", _holds("model.safetensors", b"\xff" * 100)),
    "weights a folder": ("bert", _is_folder("model.safetensors")),
    **{
        f"index {weight_map}"[:40]: ("bert", _index(weight_map))
        for weight_map in (
            5,
            {},
            {"a": 5},
            {"a": "gone.safetensors"},
            {"a": "../bert/model.safetensors"},
            {"a": "a.safetensors"},
            {"a": "x" * 5_000},
            {"a": "a\0"},
        )
    },
}


@pytest.mark.few(20)
@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_told_before_weights_are_loaded(
    name: str, models: dict[str, Path], tmp_path: Path
) -> None:
    kind, damage = DAMAGE[name]
    folder = tmp_path / "m"
    shutil.copytree(models[kind], folder)
    damage(folder)
    with pytest.raises(InputError) as caught:
        resolve_backbone(BackboneConfig(source=str(folder)), "float16", "none")
    assert str(folder) in str(caught.value)
    assert len(str(caught.value)) < 800


@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_whole_checkpoints_are_taken(kind: str, models: dict[str, Path]) -> None:
    found = resolve_backbone(BackboneConfig(source=str(models[kind])), "float16", "none")
    assert found.sizes.d_model == 32


_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors")


@given(
    name=st.sampled_from(_FILES),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=4)), min_size=1, max_size=3),
)
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_a_checkpoint_with_other_bytes_is_taken_or_refused(
    models: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    edits: list[tuple[float, bytes]],
) -> None:
    folder = tmp_path_factory.mktemp("fuzz") / "m"
    shutil.copytree(models["bert"], folder)
    content = bytearray((folder / name).read_bytes())
    # The header of the weights: beyond it every byte is a number.
    end = min(len(content), 4_000)
    for place, new in edits:
        at = int(place * end)
        content[at : at + len(new)] = new
    (folder / name).write_bytes(bytes(content))
    said = ""
    try:
        found = resolve_backbone(BackboneConfig(source=str(folder)), "float16", "none")
        load_backbone(found.files, "float32", "cpu")
    except InputError as error:
        said = str(error)
    # Any other exception is a traceback for the user, and fails here.
    assert len(said) < 1_000
