"""`permafrost export`, and trained heads used outside the pipeline."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from permafrost.stages.encoder import load_encoder
from permafrost.stages.freeze import CosineMlpHead, EncoderSizes, PairFitConfig, UnifiedHead
from permafrost.stages.heads import GlotHead, MeanHead
from permafrost.storage.keys import text_digest
from permafrost.storage.readers import open_reader
from tests.documents import snippet
from tests.flows.test_cli import Cli
from tests.stages.encoder.fitted_homes import TEXTS, home_with_features
from tests.stages.extraction.tiny_models import save_model

pytestmark = pytest.mark.deep

NEW_TEXTS = ["a river under the night sun", *TEXTS, "snow melts", "was it wind ?"]
LATENTS = tuple(f"pooled/hidden_last/{k}" for k in (1, 2, 3))
UNIFIED = PairFitConfig(head=UnifiedHead(encoders=EncoderSizes(early=6, late=8)), seed=0)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path / "home", capsys)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda model_type: save_model(model_type, tmp_path_factory.mktemp("model")))


def embedded(cli: Cli, texts: list[str], artifact: str, *flags: str) -> np.ndarray:
    source, out = cli.home.parent / "texts.parquet", cli.home.parent / "out.parquet"
    pq.write_table(pa.table({"text": texts}), source)
    cli("embed", str(source), "--head", artifact, "-o", str(out), *flags)
    column = pq.read_table(out).column("embedding").combine_chunks()
    return column.flatten().to_numpy().reshape(len(texts), -1)


@pytest.mark.parametrize("head", [MeanHead(), GlotHead(hidden=8, tau=0.3)], ids=lambda h: h.kind)
def test_encode_gives_what_embed_writes(cli: Cli, folder: Callable[[str], Path], head: Any) -> None:
    home = home_with_features(cli.home, folder("bert"), "hidden=2@tokens", texts=["never"])
    artifact = home.head(head, "hidden/2", "similarity")
    written = embedded(cli, NEW_TEXTS, artifact)
    encoder = load_encoder(cli.home, artifact, device="cpu")
    # The same rounded features; sums of float32 numbers, batched differently.
    np.testing.assert_allclose(encoder.encode(NEW_TEXTS), written, rtol=2e-5, atol=2e-6)


def test_embed_takes_a_head_on_every_layer(cli: Cli, folder: Callable[[str], Path]) -> None:
    home = home_with_features(cli.home, folder("gpt2"), "hidden=1-3@last", texts=["never"])
    artifact = home.layers_head(UNIFIED, LATENTS)
    written = embedded(cli, NEW_TEXTS, artifact)
    encoder = load_encoder(cli.home, artifact, device="cpu")
    np.testing.assert_allclose(encoder.encode(NEW_TEXTS), written, rtol=2e-5, atol=2e-6)
    pairs = home.layers_head(PairFitConfig(head=CosineMlpHead(hidden=4), seed=0), LATENTS)
    for command in ("embed", "export"):
        texts = [str(cli.home.parent / "texts.parquet"), "--head"] if command == "embed" else []
        said = cli(command, *texts, pairs, "-o", str(cli.home.parent / "other"), code=2)
        assert "scores pairs of texts" in said


def test_export_says_which_form_and_why(cli: Cli, folder: Callable[[str], Path]) -> None:
    home = home_with_features(cli.home, folder("bert"), "hidden=2@tokens")
    mean, glot = home.head(MeanHead(), "hidden/2"), home.head(GlotHead(hidden=8), "hidden/2")
    out = cli.home.parent
    done = cli.json("export", mean, "-o", str(out / "mean"))
    assert done["form"] == "plain"
    assert done["why_not_plain"] is None
    assert 0 <= done["difference"] < 2e-5
    assert done["bytes"] > 10_000
    assert done["width"] == 32
    model = SentenceTransformer(str(out / "mean"), device="cpu", local_files_only=True)
    written = embedded(cli, TEXTS, mean)
    # The library does not round features to float16: half a unit in the last place of each.
    digests = [text_digest(text) for text in TEXTS]
    reader = open_reader(home.store, "hidden/2", digests, budget_bytes=1 << 20)
    (_, rows), *_ = reader.in_order(len(TEXTS))
    assert np.abs(model.encode(TEXTS) - written).max() <= 2.0**-11 * np.abs(rows.data).max()
    said = cli("export", glot, str(out / "glot"))
    assert "module form, width 48" in said
    assert "since sentence-transformers has no pooling like a head of kind 'glot'" in said
    assert said.endswith(str(out / "glot"))
    forced = cli.json("export", mean, "-o", str(out / "forced"), "--form", "module")
    assert (forced["form"], forced["difference"]) == ("module", None)


def test_wrong_exports_are_told_with_exit_code_2(
    cli: Cli, folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_features(cli.home, folder("bert"), "hidden=2@tokens")
    artifact = home.head(GlotHead(hidden=8), "hidden/2")
    other = save_model("bert", tmp_path / "other", intermediate_size=40)
    cases = {
        (artifact, "--form", "onnx"): "'onnx' is not one of 'auto', 'plain', 'module'",
        (artifact, "--form", "plain"): "cannot be exported for sentence-transformers alone",
        (artifact, "--backbone", str(other)): home.target.identity.weights_digest,
        ("fit/abc123",): "no artifact begins with",
    }
    for arguments, says in cases.items():
        assert says in cli("export", *arguments, "-o", str(tmp_path / "out"), code=2)
        assert not (tmp_path / "out").exists()
    assert "is not empty" in cli("export", artifact, str(cli.home), code=2)
    assert "no folder to write is named" in cli("export", artifact, code=2)
    said = cli("export", artifact, "one", "-o", "two", code=2)
    assert "two folders to write are named, 'one' and -o 'two'" in said
    (tmp_path / "working").mkdir()
    monkeypatch.chdir(tmp_path / "working")
    for here in (".", "sub/.."):
        assert "as it is the working folder" in cli("export", artifact, "-o", here, code=2)
    assert not list((tmp_path / "working").iterdir())


def test_the_snippet_of_the_readme_runs(
    folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = home_with_features(tmp_path / ".permafrost", folder("bert"), "hidden=2@tokens")
    artifact = home.head(GlotHead(hidden=8), "hidden/2")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    code, chosen = snippet("uses a trained head"), 'home.head("mine", "GLOT", seed=0)'
    assert chosen in code, "tried in test_front_door.py"
    exec(compile(code.replace(chosen, repr(str(artifact))), "README.md", "exec"), names)
    expected = load_encoder(home.path, artifact).encode(names["texts"])
    assert np.array_equal(names["vectors"], expected)
