"""The encoder on texts against the feature store, transformers itself, and what may go wrong."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import normalizers
from transformers import AutoModel, AutoTokenizer

from permafrost.stages.embed import (
    EmbedConfig,
    StoredFeatures,
    combined_layers,
    embed_ensemble,
    embed_with_head,
    required_arrays,
)
from permafrost.stages.embed.finish import finish
from permafrost.stages.encoder import encoder as encoder_module
from permafrost.stages.encoder import features as features_module
from permafrost.stages.encoder import load_encoder, method_encoder
from permafrost.stages.encoder.features import as_stored
from permafrost.stages.encoder.predicted import PredictedClasses
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.recipes import parse_recipe
from permafrost.stages.extraction.recompute import COMPUTE_NOISE
from permafrost.stages.fit import load_head
from permafrost.stages.freeze import (
    CosineMlpHead,
    EncoderSizes,
    PairFitConfig,
    SiameseHead,
    Unified,
    UnifiedHead,
    UnifiedProjectionHead,
    load_pair_fit,
    predict,
    read_latents,
)
from permafrost.stages.heads import AdaPoolHead, GlotHead, MaxHead, MeanHead, MlpHead, ScorerHead
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.errors import (
    IdentityMismatchError,
    InputError,
    OverflowRangeError,
    PermafrostError,
)
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.diagonal import diagonal
from tests.stages.encoder.fitted_homes import TEXTS, Home, home_with_features
from tests.stages.extraction.tiny_models import save_model

ModelFolder = Callable[[str], Path]
SILENT = SilentProgress()


def equal_but_for_float32_rounding(found: np.ndarray, expected: np.ndarray) -> None:
    """Both from the same rounded rows: sums of float32 numbers, batched differently."""
    assert found.dtype == expected.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def stored(home: Home, texts: list[str] = TEXTS) -> StoredFeatures:
    return StoredFeatures(home.store, home.target.sizes, [text_digest(t) for t in texts])


@pytest.fixture
def bert_home(model_folder: ModelFolder, tmp_path: Path) -> Home:
    return home_with_features(tmp_path / "home", model_folder("bert"), "hidden=all@tokens")


@pytest.mark.few(2)
@diagonal(
    {
        "model_type,recipe,store_dtype": [
            ("bert", "plain", "float16"),
            ("roberta", "plain:specials=exclude", "float32"),
            ("llama", "htp:block=tokens,size=3", "bfloat16"),
            ("gpt2", "template:template=About {text} :", "float16"),
        ],
        "head,task": [
            (MeanHead(), "classification"),
            (MaxHead(), "similarity"),
            (GlotHead(hidden=8, tau=0.3), "similarity"),
            (ScorerHead(hidden=8), "unlabelled"),
            (AdaPoolHead(heads=4), "classification"),
            (MlpHead(hidden=8), "similarity"),
        ],
    },
    ids=lambda value: getattr(value, "kind", value),
)
def test_a_head_gives_the_vectors_of_the_store(
    model_folder: ModelFolder,
    tmp_path: Path,
    model_type: str,
    recipe: str,
    store_dtype: str,
    head: Any,
    task: str,
) -> None:
    home = home_with_features(
        tmp_path, model_folder(model_type), "hidden=2@tokens", parse_recipe(recipe),
        store_dtype=store_dtype,
    )  # fmt: skip
    artifact = home.head(head, "hidden/2", task)
    encoder = load_encoder(tmp_path, artifact, device="cpu")
    loaded = load_head(ArtifactStore(tmp_path).open(ArtifactStore(tmp_path).find(artifact)))
    expected = embed_with_head(loaded, stored(home).reader("hidden/2", "span"), SILENT)
    equal_but_for_float32_rounding(encoder.encode(TEXTS), expected)
    assert encoder.d_out == expected.shape[1]
    assert HeadVectors(loaded).n_parameters == loaded.n_parameters
    assert encoder.max_length == 60


def test_mean_of_the_second_block_as_transformers_computes_it(
    model_folder: ModelFolder, tmp_path: Path
) -> None:
    folder = model_folder("bert")
    home = home_with_features(tmp_path, folder, "hidden=2@tokens", store_dtype="float32")
    found = load_encoder(tmp_path, home.head(MeanHead(), "hidden/2"), device="cpu").encode(TEXTS)
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        for text, vector in zip(TEXTS, found, strict=True):
            given = torch.tensor([tokenizer(text)["input_ids"]])
            states = model(input_ids=given, output_hidden_states=True).hidden_states[2][0]
            np.testing.assert_allclose(vector, states.mean(0).numpy(), rtol=1e-4, atol=1e-5)


def test_rows_come_in_order_and_equal_texts_are_computed_once(
    bert_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(bert_home.path, bert_home.head(MeanHead(), "hidden/3"), device="cpu")
    computed: list[str] = []
    compute = encoder_module.compute_features

    def counted(backbone: Any, target: Any, texts: Any, encoded: Any) -> Any:
        computed.extend(texts)
        return compute(backbone, target, texts, encoded)

    monkeypatch.setattr(encoder_module, "compute_features", counted)
    single = {text: encoder.encode([text])[0] for text in TEXTS}
    computed.clear()
    order = [2, 0, 3, 0, 1, 2]
    vectors = encoder.encode(tuple(TEXTS[i] for i in order))
    assert sorted(computed) == sorted(TEXTS)
    assert vectors.shape == (6, 32)
    for vector, i in zip(vectors, order, strict=True):
        closest = min(single, key=lambda t: float(np.abs(single[t] - vector).max()))
        assert closest == TEXTS[i]
    assert np.array_equal(vectors[1], vectors[3])
    assert np.array_equal(vectors[0], vectors[5])


class Told:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.said: list[Any] = []

    def start(self, task: str, total: float, unit: str) -> None:
        self.said.append((task, total, unit))

    def advance(self, amount: float, note: str = "") -> None:
        self.said.append(amount)

    def finish(self) -> None:
        self.said.append("finish")


def test_progress_counts_the_texts(bert_home: Home) -> None:
    artifact = bert_home.head(MeanHead(), "hidden/3")
    encoder = load_encoder(bert_home.path, artifact, device="cpu", batch_tokens=12)
    told = Told()
    encoder.encode([*TEXTS, TEXTS[0]], told)
    first, *steps, last = told.said
    assert first == ("encode", 4, "texts")
    assert sum(steps) == 4
    assert len(steps) > 1
    assert last == "finish"


@pytest.mark.parametrize("head", [MeanHead(), GlotHead(hidden=8, tau=0.3)], ids=lambda h: h.kind)
def test_vectors_do_not_depend_on_the_size_of_a_batch(
    model_folder: ModelFolder, tmp_path: Path, head: Any
) -> None:
    home = home_with_features(
        tmp_path, model_folder("roberta"), "hidden=3@tokens", store_dtype="float32"
    )
    artifact = home.head(head, "hidden/3")
    large, small = (
        load_encoder(tmp_path, artifact, device="cpu", batch_tokens=n).encode(TEXTS)
        for n in (8192, 1)
    )
    size = np.abs(large) + np.sqrt(np.mean(large**2))
    assert (np.abs(large - small) / size).max() <= COMPUTE_NOISE["float32"]


def test_a_size_that_no_batch_can_have_is_refused(bert_home: Home) -> None:
    artifact = bert_home.head(MeanHead(), "hidden/3")
    with pytest.raises(InputError, match=r"batch_tokens: .* \(given: 0\)"):
        load_encoder(bert_home.path, artifact, batch_tokens=0)
    with pytest.raises(InputError, match="the device 'tpu' is not supported; use auto"):
        load_encoder(bert_home.path, artifact, device="tpu")


def test_no_texts_give_no_rows(bert_home: Home) -> None:
    artifact = bert_home.head(GlotHead(hidden=8), "hidden/2")
    found = load_encoder(bert_home.path, artifact, device="cpu").encode([])
    assert found.shape == (0, 32 + 2 * 8)
    assert found.dtype == np.float32


@pytest.mark.parametrize("task", ["classification", "pair_classification"])
def test_texts_may_come_one_after_the_other(bert_home: Home, task: str) -> None:
    artifact = bert_home.head(MeanHead(), "hidden/3", task)
    encoder = load_encoder(bert_home.path, artifact, device="cpu")
    assert np.array_equal(encoder.encode(iter(TEXTS)), encoder.encode(TEXTS))
    sides = [TEXTS] if task == "classification" else [TEXTS, TEXTS[::-1]]
    listed, found = encoder.predict(*sides), encoder.predict(*map(iter, sides))
    assert isinstance(listed, PredictedClasses)
    assert isinstance(found, PredictedClasses)
    assert found.probabilities is not None
    assert np.array_equal(found.probabilities, listed.probabilities)
    assert len(found.names) == len(TEXTS)
    with pytest.raises(InputError, match=r"write \[text\]"):
        encoder.predict("ice", None if task == "classification" else "snow")


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["ice", "ice", "snow", " \n"], "text 3 is "),
        (["ice", "ice", "\ud800"], "text 2 holds half of a surrogate pair"),
        (["ice", "ice", "snow", "zero"], r"text 3 \('zero'\) gives no token of its own"),
        ("ice", r"write \[text\]"),
    ],
)
def test_a_text_that_cannot_be_read_is_named_by_its_place(
    bert_home: Home, texts: Any, says: str
) -> None:
    encoder = load_encoder(bert_home.path, bert_home.head(MeanHead(), "hidden/3"), device="cpu")
    rust = encoder.targets[0].tokenizer.backend_tokenizer
    rust.normalizer = normalizers.Replace("zero", "")
    with pytest.raises(InputError, match=says):
        encoder.encode(texts)


def test_the_backbone_may_have_moved_but_must_be_the_same(
    bert_home: Home, model_folder: ModelFolder, tmp_path: Path
) -> None:
    artifact = bert_home.head(MeanHead(), "hidden/3")
    here = load_encoder(bert_home.path, artifact, device="cpu").encode(TEXTS)
    moved = tmp_path / "moved"
    shutil.copytree(model_folder("bert"), moved)
    there = load_encoder(bert_home.path, artifact[:12], str(moved), device="cpu").encode(TEXTS)
    assert np.array_equal(here, there)
    identity = bert_home.target.identity
    other = save_model("bert", tmp_path / "other", intermediate_size=40)
    with pytest.raises(IdentityMismatchError, match=identity.weights_digest) as refused:
        load_encoder(bert_home.path, artifact, str(other))
    found = home_with_features(tmp_path / "h2", other, "hidden=1@tokens").target.identity
    assert found.weights_digest in str(refused.value)
    assert found.weights_digest != identity.weights_digest
    assert "tokenizer_digest" not in str(refused.value)


def test_another_tokenizer_is_refused(bert_home: Home, tmp_path: Path) -> None:
    artifact = bert_home.head(MeanHead(), "hidden/3")
    moved = tmp_path / "moved"
    shutil.copytree(bert_home.target.files.folder, moved)
    vocabulary = moved / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace('"snow"', '"slush"'))
    with pytest.raises(IdentityMismatchError, match="tokenizer_digest") as refused:
        load_encoder(bert_home.path, artifact, str(moved))
    assert bert_home.target.identity.tokenizer_digest in str(refused.value)


def test_artifacts_of_other_stages_are_refused(bert_home: Home) -> None:
    spec = ArtifactSpec(stage="score", config={})
    with ArtifactStore(bert_home.path).publishing(spec, {}):
        pass
    with pytest.raises(InputError, match="is a score artifact; give one of stage fit"):
        load_encoder(bert_home.path, str(spec.ref))


LATENTS = tuple(f"pooled/hidden_last/{k}" for k in (1, 2, 3))
SIZES = EncoderSizes(early=6, late=8)


@pytest.fixture(scope="module")
def latents_home(model_folder: ModelFolder, tmp_path_factory: pytest.TempPathFactory) -> Home:
    path = tmp_path_factory.mktemp("latents")
    return home_with_features(path, model_folder("gpt2"), "hidden=1-3@last", store_dtype="float32")


@pytest.mark.parametrize(
    ("head", "d_out"),
    [
        (UnifiedHead(encoders=SIZES), 6 + 8 + 8),
        (UnifiedHead(encoders=EncoderSizes(early=8, late=8), join="average"), 8),
        (UnifiedProjectionHead(encoders=SIZES, d_embed=16), 16),
    ],
    ids=["concatenate", "average", "projection"],
)
def test_the_unified_embedding_has_the_cosines_that_the_head_predicts(
    latents_home: Home, head: Any, d_out: int
) -> None:
    config = PairFitConfig(head=head, seed=1)
    artifact = latents_home.layers_head(config, LATENTS)
    encoder = load_encoder(latents_home.path, artifact, device="cpu")
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (4, d_out) == (4, encoder.d_out)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    artifacts = ArtifactStore(latents_home.path)
    trained = load_pair_fit(artifacts.open(artifacts.find(artifact))).head()
    assert isinstance(trained, Unified)
    again = LatentVectors(trained, tuple(LATENTS), config=config)
    assert again.n_parameters == trained.n_parameters > 0
    features = stored(latents_home)
    rows = read_latents([features.reader(array, "span") for array in LATENTS])
    pairs = np.array([[0, 1], [2, 3], [1, 1]])
    expected = predict(trained, rows, pairs)
    found = (1 + (unit[pairs[:, 0]] * unit[pairs[:, 1]]).sum(1)) / 2
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("head", [CosineMlpHead(hidden=4), SiameseHead(d_code=4, hidden=4)])
def test_a_head_that_scores_pairs_has_no_vectors(latents_home: Home, head: Any) -> None:
    artifact = latents_home.layers_head(PairFitConfig(head=head, seed=1), LATENTS)
    with pytest.raises(InputError, match=r"scores pairs of texts .* 'unified' and") as refused:
        load_encoder(latents_home.path, artifact)
    assert repr(head.kind) in str(refused.value)


METHODS = [
    {"method": "mean"},
    {"method": "last", "layers": "1-2", "combine": "concatenate"},
    {"method": "max", "of": "values", "layers": "2", "normalise": "l2"},
    {"method": "first", "layers": "0,final"},
    {"method": "weighted_mean"},
    {"method": "hs"},
    {"method": "va", "combine": "concatenate"},
    {"method": "wva", "layers": "2-3"},
    {"method": "aligned_wva", "layers": "half", "combine": "concatenate", "normalise": "l2"},
]


def by_the_store(
    config: EmbedConfig, path: Path, backbone: Path, recipe: str, max_length: int
) -> np.ndarray:
    """Extract under each prompt, then as `permafrost embed` does."""
    members: list[StoredFeatures] = []
    for member in parse_recipe(recipe).members():
        sizes = method_encoder(config, BackboneConfig(source=str(backbone))).backbone.sizes
        kinds: dict[str, list[str]] = {}
        for array in required_arrays(config, sizes):
            kind, _, index = array.partition("/")
            kinds.setdefault(kind, []).append(index)
        capture = ",".join(f"{kind}={','.join(which)}@tokens" for kind, which in kinds.items())
        home = home_with_features(path, backbone, capture, member, max_length=max_length)
        members.append(stored(home))
    parts = [combined_layers(config, m, SILENT) for m in members]
    return finish(config, embed_ensemble(parts, config.combine), members[0].name)


@pytest.mark.few(3)
@diagonal(
    {
        "fields": METHODS,
        "recipe": ["plain", 'meta_eol:prompts=["Of {text} :", "On {text} is"]'],
    },
    ids=lambda value: "-".join(value.values()) if isinstance(value, dict) else value,
)
def test_a_method_without_training(
    model_folder: ModelFolder, tmp_path: Path, recipe: str, fields: dict[str, str]
) -> None:
    config, backbone = EmbedConfig.model_validate(fields), model_folder("llama")
    encoder = method_encoder(
        config,
        BackboneConfig(source=str(backbone), max_length=50),
        parse_recipe(recipe),
        device="cpu",
    )
    found = encoder.encode(TEXTS)
    equal_but_for_float32_rounding(found, by_the_store(config, tmp_path, backbone, recipe, 50))
    assert encoder.d_out == found.shape[1]
    with pytest.raises(InputError, match=r"no scores to predict; use its vectors \(encode\)"):
        encoder.predict(TEXTS)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "va", "layers": "auto"}, "layers is 'auto'"),
        ({"whitening": {}}, "whitening is fitted"),
        ({"layers": "9"}, "hidden 0 to 3"),
    ],
)
def test_methods_that_need_a_corpus_are_refused(
    model_folder: ModelFolder, fields: dict[str, Any], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        method_encoder(
            EmbedConfig.model_validate(fields), BackboneConfig(source=str(model_folder("bert")))
        )


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_rows_are_rounded_as_the_store_rounds_them(dtype: str) -> None:
    rows = torch.randn(7, 5, generator=torch.Generator().manual_seed(0)) * 300
    found = as_stored("hidden/1", rows, dtype)  # type: ignore[arg-type]
    assert found.dtype == torch.float32
    if dtype == "float16":
        assert np.array_equal(found.numpy(), rows.numpy().astype(np.float16).astype(np.float32))
    elif dtype == "bfloat16":
        bits = rows.numpy().view(np.uint32)
        # To nearest, ties to even, of the upper 16 bits.
        bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16).astype(np.uint32)
        assert np.array_equal(found.numpy(), bits.view(np.float32))
    else:
        assert torch.equal(found, rows)


def test_numbers_that_do_not_fit_are_told() -> None:
    with pytest.raises(
        OverflowRangeError, match=r"hidden/7 holds the activation -70000, .* float16"
    ):
        as_stored("hidden/7", torch.tensor([[1.0, -7e4]]), "float16")
    with pytest.raises(PermafrostError, match="non-finite activation in values/2"):
        as_stored("values/2", torch.tensor([[1.0, float("nan")]]), "float32")


def test_an_overflow_in_a_text_stops_the_encoding(
    bert_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load_encoder(bert_home.path, bert_home.head(MeanHead(), "hidden/3"), device="cpu")
    forward = features_module.forward
    monkeypatch.setattr(
        features_module, "forward", lambda *a: {k: v * 1e6 for k, v in forward(*a).items()}
    )
    with pytest.raises(OverflowRangeError, match="no vector was made"):
        encoder.encode(TEXTS)
