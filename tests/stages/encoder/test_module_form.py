"""Exported folders of any head: for Permafrost alone, and for sentence-transformers through it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from permafrost.stages.encoder import export as export_module
from permafrost.stages.encoder import export_head, load_encoder, load_exported
from permafrost.stages.encoder import features as features_module
from permafrost.stages.encoder.sentence_transformers_module import FrozenBackboneHead
from permafrost.stages.extraction.recipes import parse_recipe
from permafrost.stages.extraction.recompute import COMPUTE_NOISE
from permafrost.stages.freeze import EncoderSizes, PairFitConfig, UnifiedHead
from permafrost.stages.heads import (
    AdaPoolHead,
    FirstHead,
    GlotHead,
    LastHead,
    MeanHead,
    MlpHead,
    ScorerHead,
)
from permafrost.stages.heads.graph.pyg_conv import PygConv
from permafrost.stages.heads.pyg_pool import PygPoolHead
from permafrost.storage.drafts import owner
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, InputError, PermafrostError
from tests.stages.encoder.fitted_homes import TEXTS, Home, home_with_features
from tests.storage.small_store import flip

pytestmark = pytest.mark.deep

ModelFolder = Callable[[str], Path]
ROOT = Path(__file__).parents[3]


def loaded(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(
        str(folder), device="cpu", trust_remote_code=True, local_files_only=True
    )


def same_but_for_batches(found: np.ndarray, expected: np.ndarray) -> None:
    """Of features in float32; the library makes other batches."""
    size = np.abs(expected) + np.sqrt(np.mean(expected**2))
    assert (np.abs(found - expected) / size).max() <= COMPUTE_NOISE["float32"]


@pytest.fixture
def home(model_folder: ModelFolder, tmp_path: Path) -> Home:
    return home_with_features(
        tmp_path / "home", model_folder("bert"), "hidden=2@tokens", store_dtype="float32"
    )


@pytest.fixture
def exported(home: Home, tmp_path: Path) -> Path:
    artifact = home.head(GlotHead(hidden=8, tau=0.3), "hidden/2", "similarity")
    return export_head(home.path, artifact, tmp_path / "out", device="cpu").folder


GATV2 = PygConv(name="GATv2Conv")


@pytest.mark.parametrize(
    ("model_type", "recipe", "head"),
    [
        ("bert", "plain", GlotHead(hidden=8, tau=0.3)),
        pytest.param(
            "roberta", "plain:specials=exclude", ScorerHead(hidden=8), marks=pytest.mark.deep
        ),
        pytest.param("distilbert", "plain:bos=omit", AdaPoolHead(heads=4), marks=pytest.mark.deep),
        ("llama", "htp:block=tokens,size=3", MlpHead(hidden=8)),
        ("gpt2", "echo", FirstHead()),
        pytest.param(
            "bert", "plain", GlotHead(hidden=8, tau=0.3, conv="gin"), marks=pytest.mark.deep
        ),
        pytest.param(
            "bert",
            "plain",
            GlotHead(hidden=8, tau=0.3, conv=PygConv(name="GATv2Conv")),
            marks=pytest.mark.deep,
        ),
        ("bert", "plain", PygPoolHead(name="Set2Set", args={"processing_steps": 2})),
    ],
)
def test_any_head_and_recipe(
    model_folder: ModelFolder, tmp_path: Path, model_type: str, recipe: str, head: Any
) -> None:
    home = home_with_features(
        tmp_path / "home",
        model_folder(model_type),
        "hidden=2@tokens",
        parse_recipe(recipe),
        store_dtype="float32",
    )
    artifact = home.head(head, "hidden/2", "similarity")
    done = export_head(home.path, artifact, tmp_path / "out", "module", device="cpu")
    ours = load_encoder(home.path, artifact, device="cpu").encode(TEXTS)
    shutil.rmtree(home.path)
    assert np.array_equal(load_exported(done.folder, device="cpu").encode(TEXTS), ours)
    model = loaded(done.folder)
    same_but_for_batches(model.encode(TEXTS, batch_size=2), ours)
    assert model.get_embedding_dimension() == ours.shape[1] == done.d_out
    assert model.max_seq_length == 60


def test_a_head_on_every_layer(model_folder: ModelFolder, tmp_path: Path) -> None:
    home = home_with_features(
        tmp_path / "home", model_folder("gpt2"), "hidden=1-3@last", store_dtype="float32"
    )
    config = PairFitConfig(head=UnifiedHead(encoders=EncoderSizes(early=6, late=8)), seed=0)
    arrays = tuple(f"pooled/hidden_last/{k}" for k in (1, 2, 3))
    artifact = home.layers_head(config, arrays)
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    assert done.why_not_plain is not None
    assert "latents of every layer" in done.why_not_plain
    ours = load_encoder(home.path, artifact, device="cpu").encode(TEXTS)
    assert np.array_equal(load_exported(done.folder, device="cpu").encode(TEXTS), ours)
    same_but_for_batches(loaded(done.folder).encode(TEXTS), ours)


def test_a_head_on_stored_readouts_is_that_on_the_tokens_they_are(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    captured = "hidden=2@tokens,hidden=2@readout"
    home = home_with_features(
        tmp_path / "home", model_folder("gpt2"), captured, store_dtype="float32"
    )
    expected = embedded(home, home.head(LastHead(), "hidden/2"))
    for head in (FirstHead(), LastHead(), MeanHead(), GlotHead(n_convs=0)):
        artifact = home.head(head, "pooled/hidden_readout/2")
        np.testing.assert_allclose(embedded(home, artifact), expected, rtol=1e-6)
        done = export_head(home.path, artifact, tmp_path / head.kind, device="cpu")
        assert done.why_not_plain is not None
        same_but_for_batches(load_exported(done.folder, device="cpu").encode(TEXTS), expected)


def embedded(home: Home, artifact: str) -> np.ndarray:
    return load_encoder(home.path, artifact, device="cpu").encode(TEXTS)


def test_the_library_wants_trust_or_the_module_itself(exported: Path) -> None:
    with pytest.raises(ValueError, match="FrozenBackboneHead"):
        SentenceTransformer(str(exported), device="cpu", local_files_only=True)
    module = FrozenBackboneHead.load(str(exported))
    model = SentenceTransformer(modules=[module], device="cpu")
    assert np.array_equal(model.encode(TEXTS), loaded(exported).encode(TEXTS))
    with pytest.raises(InputError, match="no folder"):
        FrozenBackboneHead.load(str(exported), subfolder="nothing")


def test_one_text_alone_a_prompt_and_an_empty_text(exported: Path) -> None:
    model = loaded(exported)
    assert model.encode("snow melts").shape == (model.get_embedding_dimension(),)
    prompted = model.encode(["melts"], prompt="snow ")
    assert np.array_equal(prompted, model.encode(["snow melts"]))
    with pytest.raises(InputError, match=r"^a text is '', which has nothing to tokenise"):
        model.encode([""])
    # The library reads the longest texts first, in batches.
    with pytest.raises(InputError, match=r"^a text is '  ', which has nothing"):
        model.encode(["ice", "  ", "snow melts slowly"], batch_size=1)
    with pytest.raises(InputError, match=r"^the text 'ice.*' holds half of a surrogate pair"):
        model.encode(["the deep lake freezes", "ice\ud800"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_in_another_precision_is_refused(exported: Path, dtype: torch.dtype) -> None:
    model = loaded(exported).to(dtype=dtype)

    with pytest.raises(InputError, match=rf"converted from torch.float32 to {dtype}"):
        model.encode(TEXTS[:2])


def test_the_model_can_be_saved_again(exported: Path, tmp_path: Path) -> None:
    model = loaded(exported)
    model.save(str(tmp_path / "again"), create_model_card=False)
    assert np.array_equal(loaded(tmp_path / "again").encode(TEXTS), model.encode(TEXTS))
    # A name that is promised to stay, whoever writes the folder.
    for folder in (exported, tmp_path / "again"):
        assert [m["type"] for m in read_json(folder / "modules.json")] == [
            "permafrost.FrozenBackboneHead"
        ]


def test_the_folder_says_what_it_is(home: Home, exported: Path) -> None:
    card = (exported / "README.md").read_text()
    identity = home.target.identity
    for said in (identity.weights_digest, identity.tokenizer_digest, identity.store_id, "glot"):
        assert said in card
    assert str(exported.parent) not in "".join(
        p.read_text() for p in exported.rglob("*") if p.suffix in (".md", ".json")
    )
    assert read_json(exported / "permafrost.json")["artifact"] in card
    for path in (p for p in exported.rglob("*") if p.is_file()):
        # Whoever may open the folder may load it.
        assert path.stat().st_mode & 0o444 == path.parent.stat().st_mode & 0o444, path


def test_another_backbone_in_the_folder_is_refused(exported: Path) -> None:
    config = exported / "backbone" / "config.json"
    recorded = read_json(exported / "permafrost.json")["identity"]["weights_digest"]
    config.write_text(
        config.read_text().replace('"layer_norm_eps": 1e-12', '"layer_norm_eps": 1e-6')
    )
    with pytest.raises(
        CorruptDataError, match=f"not the one that was exported .*{recorded}, found "
    ) as caught:
        load_exported(exported)
    assert "another --home" not in str(caught.value)


@pytest.mark.parametrize(
    ("file", "content", "error", "says"),
    [
        ("permafrost.json", "{", CorruptDataError, "is not valid JSON"),
        ("permafrost.json", "[]", CorruptDataError, "is damaged"),
        ("permafrost.json", "{}", CorruptDataError, "is damaged"),
        ("permafrost.json", None, InputError, "did not write it"),
        (
            "head/head.json",
            "{",
            CorruptDataError,
            "SHA-256 [0-9a-f]{64}, exported was [0-9a-f]{64}; ",
        ),
        ("head/head.json", None, CorruptDataError, "is damaged: it is not there; "),
        ("backbone/config.json", None, InputError, "has no config.json"),
    ],
)
def test_damage_is_told(
    exported: Path, file: str, content: str | None, error: type[Exception], says: str
) -> None:
    artifact = read_json(exported / "permafrost.json")["artifact"]
    (exported / file).unlink()
    if content is not None:
        (exported / file).write_text(content)
    with pytest.raises(error, match=says) as caught:
        load_exported(exported)
    told, again = str(caught.value), file != "permafrost.json" or content is not None
    assert "permafrost verify" not in told
    assert (f"-o {exported}'" in told) is again
    if "/" in file:
        assert f"'permafrost export {artifact} --form module -o" in told


def test_a_changed_weight_is_told(exported: Path) -> None:
    flip(exported / "head" / "head.safetensors", -1)
    with pytest.raises(CorruptDataError, match=r"head.safetensors is damaged"):
        load_exported(exported)


def test_a_record_that_says_something_else_is_told(exported: Path) -> None:
    record = read_json(exported / "permafrost.json")
    (exported / "permafrost.json").write_text(json.dumps(record | {"arrays": ["hidden/1"]}))
    with pytest.raises(
        CorruptDataError, match=r"permafrost.json is damaged: its checksum .*; .* export again"
    ):
        load_exported(exported)


def test_a_folder_of_an_earlier_version_has_no_digests_and_loads(exported: Path) -> None:
    wanted = load_exported(exported, device="cpu").encode(["ice"])
    record = read_json(exported / "permafrost.json")
    del record["checksum"], record["head_sha256"]
    (exported / "permafrost.json").write_text(json.dumps(record))
    assert np.array_equal(load_exported(exported, device="cpu").encode(["ice"]), wanted)


def test_a_plain_folder_is_not_for_us(home: Home, tmp_path: Path) -> None:
    artifact = home.head(MeanHead(), "hidden/2")
    done = export_head(home.path, artifact, tmp_path / "plain", device="cpu")
    with pytest.raises(InputError, match="is of the plain form"):
        load_exported(done.folder)


def test_a_folder_in_use_is_left_alone(home: Home, tmp_path: Path) -> None:
    artifact = home.head(MeanHead(), "hidden/2")
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty \(it holds notes.txt\)"):
        export_head(home.path, artifact, tmp_path / "used")
    with pytest.raises(InputError, match="which is a file"):
        export_head(home.path, artifact, tmp_path / "used" / "notes.txt")
    with pytest.raises(InputError, match="is not a folder"):
        export_head(home.path, artifact, tmp_path / "used" / "notes.txt" / "out")
    assert [p.name for p in (tmp_path / "used").iterdir()] == ["notes.txt"]
    (tmp_path / "empty").mkdir()
    done = export_head(home.path, artifact, tmp_path / "empty", "module")
    assert load_exported(done.folder, device="cpu").d_out == 32


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_nothing_is_left_of_an_export_that_fails(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*_: Any) -> str:
        raise error

    artifact = home.head(GlotHead(hidden=8), "hidden/2")
    monkeypatch.setattr(export_module, "model_card", fail)
    # What a killed export left goes, too: the owner's pid belongs to a later process.
    place, pid, started = owner().split(".")
    of_dead = tmp_path / "deep" / f".draft-out-{place}.{pid}.{int(started) - 1}-0123abcd"
    (of_dead / "inside").mkdir(parents=True)
    with pytest.raises(type(error)):
        export_head(home.path, artifact, tmp_path / "deep" / "out")
    assert list((tmp_path / "deep").iterdir()) == []


@pytest.mark.deep
def test_a_killed_export_leaves_no_folder_under_its_name(home: Home, tmp_path: Path) -> None:
    artifact = home.head(GlotHead(hidden=8), "hidden/2")
    program = (
        "import os, signal, sys; from pathlib import Path; from permafrost.stages.encoder import export\n"
        "export.model_card = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "export.export_head(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))"
    )
    out = tmp_path / "killed" / "out"
    ended = subprocess.run(
        [sys.executable, "-c", program, str(home.path), artifact, str(out)],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL
    assert [p.name.startswith(".draft-out-") for p in out.parent.iterdir()] == [True]
    done = export_head(home.path, artifact, out)
    assert [p.name for p in out.parent.iterdir()] == ["out"]
    assert json.loads((done.folder / "modules.json").read_text())[0]["path"] == ""


def test_a_batch_that_does_not_fit_in_memory_is_split(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = home.head(GlotHead(hidden=8), "hidden/2")
    done = export_head(home.path, artifact, tmp_path / "out", device="cpu")
    encoder, module = load_exported(done.folder, device="cpu"), loaded(done.folder)
    expected, compute, sizes = encoder.encode(TEXTS), features_module.forward, list[int]()
    most = 25

    def limited(backbone: Any, encoded: Any, *further: Any) -> Any:
        sizes.append(len(encoded) * int(encoded.token_ids.lengths.max()))
        if sizes[-1] > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return compute(backbone, encoded, *further)

    monkeypatch.setattr(features_module, "forward", limited)
    for found in (encoder.encode(TEXTS), module.encode(TEXTS)):
        same_but_for_batches(found, expected)
    assert max(sizes) > most
    most = 2
    with pytest.raises(PermafrostError, match="tokens alone does not fit in the memory of cpu"):
        encoder.encode(TEXTS)


def test_what_a_person_does_with_a_loaded_folder(exported: Path) -> None:
    model = loaded(exported)
    (module,) = model
    with pytest.raises(InputError, match=r"max_seq_length cannot be 8: .* cut to 60 tokens"):
        module.max_seq_length = 8
    for wrong in (None, 3):
        with pytest.raises(InputError, match=rf"^{wrong} is no text; give"):
            model.encode([TEXTS[0], wrong])
    before = {p: p.read_bytes() for p in exported.rglob("*.safetensors")}
    model.save_pretrained(str(exported))
    assert {p: p.read_bytes() for p in exported.rglob("*.safetensors")} == before
    np.testing.assert_array_equal(loaded(exported).encode(TEXTS), model.encode(TEXTS))


def test_an_unknown_device_is_refused_where_none_is_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the device 'tpu' is not supported"):
        export_head(tmp_path, "fit/ab", tmp_path / "out", "module", device="tpu")
