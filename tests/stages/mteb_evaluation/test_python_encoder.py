"""Encoders in Python and exported folders, scored by mteb with its cache of results."""

import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from mteb.cache import ResultCache
from sentence_transformers import SentenceTransformer

import permafrost
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.encoder import export_head, load_encoder, load_exported, method_encoder
from permafrost.stages.encoder import vectors as vectors_module
from permafrost.stages.encoder.plain_form import files_digest
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.recipes import PlainRecipe, parse_recipe
from permafrost.stages.freeze import EncoderSizes, PairFitConfig, UnifiedHead
from permafrost.stages.heads import GlotHead, MeanHead, ScorerHead
from permafrost.stages.mteb_evaluation.build import build_task
from permafrost.stages.mteb_evaluation.python_encoder import _require_ours
from permafrost.storage.errors import CorruptDataError, InputError
from tests.documents import marked
from tests.stages.encoder.fitted_homes import Home, home_with_features
from tests.stages.extraction.tiny_models import save_model
from tests.stages.mteb_evaluation.small_tasks import task, write_rows, write_task

pytestmark = [
    pytest.mark.deep,
    # mteb about its own call, when it wraps a model of sentence-transformers.
    pytest.mark.filterwarnings("ignore:The fill_missing parameter:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The `get_sentence_embedding_dimension`:FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    folder = tmp_path_factory.mktemp("python-encoders")
    return home_with_features(
        folder / "home", save_model("bert", folder / "bert"), "hidden=all@tokens"
    )


@pytest.fixture(scope="module")
def plain(home: Home) -> Path:
    artifact = home.head(MeanHead(), "hidden/1", "similarity")
    done = export_head(
        home.path,
        artifact,
        home.path.parent / "Plain one, \N{GREEK SMALL LETTER TAU}",
        device="cpu",
    )
    assert done.form == "plain"
    return done.folder


@pytest.fixture(scope="module")
def module(home: Home) -> Path:
    artifact = home.head(GlotHead(hidden=8, tau=0.3), "hidden/3", "similarity")
    done = export_head(home.path, artifact, home.path.parent / "glot", device="cpu")
    assert done.form == "module"
    return done.folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task(tmp_path_factory.mktemp("tasks"), "sts").parent


def score(model: Any, data: Path, cache: ResultCache | None, kind: str = "sts") -> float:
    config = task(data, kind)
    found = mteb.evaluate(
        model,
        build_task(config, "mine", config.read()),
        cache=cache,
        co2_tracker=False,
        show_progress_bar=False,
    )
    return found.task_results[0].get_score()


def as_its_readme_says(folder: Path) -> SentenceTransformer:
    """The model of the README's lines on mteb."""
    (code,) = re.findall(
        r"```python\nimport mteb\n(.*?)results =", (folder / "README.md").read_text(), re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(code.replace(f'"{folder.name}"', repr(str(folder))), names)
    return names["model"]


def test_models_that_share_a_cache_have_their_own_scores(
    home: Home, plain: Path, module: Path, data: Path, tmp_path: Path
) -> None:
    mean = home.head(ScorerHead(hidden=8), "hidden/2", "similarity")
    models = [
        permafrost.mteb_encoder(plain, device="cpu"),
        permafrost.mteb_encoder(str(module), device="cpu"),
        permafrost.mteb_encoder(load_encoder(home.path, mean, device="cpu")),
        as_its_readme_says(plain),
    ]
    alone = [score(m, data, None) for m in models]
    cache = ResultCache(tmp_path / "cache")
    assert [score(m, data, cache) for m in models] == alone
    assert len(list((tmp_path / "cache").rglob("mine.json"))) == len(models)
    assert len({round(s, 6) for s in alone[:3]}) == 3, "each has another one"
    assert alone[3] == pytest.approx(alone[0], abs=1e-6)
    # And they are those of the library on the same folders.
    library = SentenceTransformer(str(module), device="cpu", trust_remote_code=True)
    assert score(library, data, None) == pytest.approx(alone[1], abs=2e-3)


def test_the_lines_of_the_page_run(
    module: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = marked("test: scores by mteb", "python")
    (tmp_path / "my-head").symlink_to(module)
    monkeypatch.chdir(tmp_path)
    # Its default lies in the user's folder.
    cache = ResultCache(tmp_path / "cache")
    monkeypatch.setattr(mteb, "evaluate", partial(mteb.evaluate, cache=cache))
    config = task(data, "sts")
    built = build_task(config, "mine", config.read())
    monkeypatch.setattr(mteb, "get_tasks", lambda names: [built])
    names: dict[str, Any] = {}
    exec(code, names)
    model = permafrost.mteb_encoder(module, device="cpu")
    assert names["results"].task_results[0].get_score() == pytest.approx(score(model, data, None))
    (kept,) = (tmp_path / "cache").rglob("mine.json")
    assert kept.parent.name == model.mteb_model_meta.revision
    assert kept.parents[1].name == "permafrost__glot"


def test_names_and_revisions(home: Home, plain: Path, module: Path) -> None:
    def meta(encoder: Any, name: str | None = None) -> tuple[Any, Any]:
        found = permafrost.mteb_encoder(encoder, name).mteb_model_meta
        return found.name, found.revision

    ours = load_exported(module, device="cpu")
    assert meta(ours, "Mine!") == ("permafrost/Mine", meta(module)[1])
    assert meta(module)[0] == "permafrost/glot"
    assert meta(plain)[0] == "permafrost/Plain-one"
    assert meta(ours)[0] == "permafrost/encoder"
    card = (plain / "README.md").read_text()
    assert f'base_model_revision = "{files_digest(plain)}"' in card
    assert 'model_name = "permafrost/Plain-one"' in card
    assert meta(plain)[1] != files_digest(plain), "blank texts have other vectors there"


def test_everything_that_makes_vectors_is_in_the_revision(home: Home) -> None:
    def revision(encoder: Any) -> str | None:
        return permafrost.mteb_encoder(encoder).mteb_model_meta.revision

    def head(config: Any, layer: str, seed: int = 1) -> Any:
        artifact = home.head(config, layer, "similarity", seed=seed)
        return load_encoder(home.path, artifact, device="cpu")

    def method(recipe: Any = None, dtype: Any = "float16", length: int = 20, **fields: Any) -> Any:
        config = EmbedConfig.model_validate({"method": "mean", "layers": "2", **fields})
        source = BackboneConfig(source=str(home.target.files.folder), max_length=length)
        return method_encoder(config, source, recipe, store_dtype=dtype, device="cpu")

    sizes = EncoderSizes(early=6, late=8)
    layers = tuple(f"pooled/hidden_last/{k}" for k in (1, 2, 3))
    lasts = home_with_features(
        home.path.parent / "lasts", home.target.files.folder, "hidden=1-3@last"
    )
    unified = [
        load_encoder(
            lasts.path,
            lasts.layers_head(PairFitConfig(head=UnifiedHead(encoders=sizes), seed=seed), layers),
            device="cpu",
        )
        for seed in (1, 2)
    ]
    found = [
        revision(encoder)
        for encoder in (
            head(ScorerHead(hidden=8), "hidden/2"),
            head(ScorerHead(hidden=8), "hidden/2", seed=2),
            head(ScorerHead(hidden=8), "hidden/3"),
            head(MeanHead(), "hidden/2"),
            *unified,
            method(),
            method(layers="3"),
            method(method="last"),
            method(normalise="l2"),
            method(parse_recipe("echo")),
            method(dtype="float32"),
            method(length=24),
        )
    ]
    assert len(set(found)) == len(found)
    assert revision(head(ScorerHead(hidden=8), "hidden/2")) == found[0]
    assert revision(method(PlainRecipe())) == found[6]


@pytest.mark.parametrize("form", ["plain", "module"])
def test_a_blank_document_has_a_vector_of_zeros(
    form: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = write_task(tmp_path, "retrieval")
    corpus = [
        {"doc_id": f"d{i}", "title": "", "text": "snow melts" if i else " "} for i in range(30)
    ]
    write_rows(folder / "corpus.parquet", corpus)
    exported: Path = request.getfixturevalue(form)
    model = permafrost.mteb_encoder(exported, device="cpu")
    score(model, tmp_path, None, "retrieval")  # refuses no document
    vectors = model.vectors(["ice", " ", "ice"], "document")
    assert not vectors[1].any()
    np.testing.assert_array_equal(vectors[0], vectors[2])
    library = SentenceTransformer(str(exported), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(vectors[0], library.encode("ice"), rtol=2e-3, atol=2e-3)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'permafrost export' did not write it"):
        permafrost.mteb_encoder(tmp_path)


def test_code_is_in_the_revision(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_exported(module, device="cpu")
    before = permafrost.mteb_encoder(encoder).mteb_model_meta.revision
    monkeypatch.setattr(vectors_module, "code_of", lambda *entries: ["as it was"])
    assert permafrost.mteb_encoder(encoder).mteb_model_meta.revision != before


def test_vectors_of_another_kind_are_refused(module: Path, data: Path) -> None:
    """By that kind mteb would name the scores."""
    model, config = permafrost.mteb_encoder(module, device="cpu"), task(data, "sts")
    built = build_task(config, "mine", config.read())
    for asked in ({"precision": "binary"}, {"truncate_dim": 4}):
        with pytest.raises(
            InputError, match=f"encode_kwargs has {next(iter(asked))} .*leave it out"
        ):
            mteb.evaluate(model, built, encode_kwargs=asked, cache=None, co2_tracker=False)


def test_what_is_no_encoder_of_ours_is_refused(plain: Path, tmp_path: Path) -> None:
    for given in (SentenceTransformer(str(plain), device="cpu"), 3):
        with pytest.raises(InputError, match=f"{type(given).__name__} was given; give what home"):
            _require_ours(given)
    with pytest.raises(InputError, match="'tpu' is not supported"):
        permafrost.mteb_encoder(plain, device="tpu")
    shutil.copytree(plain, cut := tmp_path / "cut")
    next(cut.rglob("model.safetensors")).write_bytes(b"cut off")
    with pytest.raises(CorruptDataError, match="cannot be loaded by sentence-transformers"):
        permafrost.mteb_encoder(cut, device="cpu")
