"""A home that an earlier version left goes on working: it verifies, its heads give the vectors they gave, its
exports load, and a run of the same experiment computes no token."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

import permafrost
from permafrost.flows.disk.garbage import collect
from permafrost.flows.pipeline import run_serially
from permafrost.flows.records.runs import run_files, run_problems
from permafrost.flows.texts.embedding import ByHead, ExtractContext, embed_texts
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.encoder import upgrade_exported
from permafrost.stages.extraction.target import ExtractRuntime
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.features.store import all_stores
from permafrost.storage.features.verification import verify
from permafrost.storage.progress import SilentProgress
from tests.flows.frozen_home import HEADS, PAIR_HEADS, TEXTS, trained, unpack
from tests.flows.scored_answers import answers_as_scored

QUIET = ExtractRuntime(device="cpu")


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("frozen"))


def test_nothing_in_it_is_called_damaged(frozen: Path) -> None:
    home = frozen / "home"
    artifacts = ArtifactStore(home)
    refs = artifacts.refs()
    assert len(refs) == 36
    assert [p for ref in refs for p in artifacts.problems(ref)] == []
    assert [p for store in all_stores(home) for p in verify(store, SilentProgress())] == []
    assert [p for path in run_files(home) for p in run_problems(home, path)] == []
    assert collect(home, []).folders == [], "its run is a root, whatever version made it"


def test_every_head_gives_the_vectors_it_gave(frozen: Path, tmp_path: Path) -> None:
    home = shutil.copytree(frozen / "home", tmp_path / "home")
    context = ExtractContext(home, QUIET, lambda _: SilentProgress())
    heads = trained(home)
    assert len(heads) == 11
    for key in heads:
        how = ByHead(key, str(frozen / "backbone"))
        embed_texts(how, TEXTS, tmp_path / "now.parquet", context)
        now, then = (
            np.stack(pq.read_table(path).column("embedding").to_numpy())
            for path in (
                tmp_path / "now.parquet",
                frozen / "vectors" / f"{key.partition('/')[2]}.parquet",
            )
        )
        # Other processors round otherwise.
        np.testing.assert_allclose(now, then, rtol=1e-4, atol=1e-5, err_msg=heads[key])


def test_every_head_answers_what_its_score_kept(frozen: Path, tmp_path: Path) -> None:
    """Pair heads without a vector and the linear classifier among them."""
    home = shutil.copytree(frozen / "home", tmp_path / "home")
    artifacts = ArtifactStore(home)
    answering = {"fit", "linear"}
    scored = [
        (head, manifest)
        for manifest in (*artifacts.all("score"), *artifacts.all("linear"))
        for head in (*manifest.spec.inputs, str(manifest.ref))
        if head.partition("/")[0] in answering
    ]
    assert len(scored) == len(HEADS) + len(PAIR_HEADS) + 1
    for head, manifest in scored:
        (corpus,) = (i for i in manifest.spec.inputs if i.startswith("corpus/"))
        of = Corpus.load(artifacts.open(parse_ref(corpus)))
        kept = artifacts.open(manifest.ref)
        # Other processors round otherwise.
        compared = answers_as_scored(home, head, kept, of, 1e-4, 1e-5, frozen / "backbone")
        assert compared == 1, "a file without the names of classes"


def upgraded(export: Path, target: Path) -> Path:
    """A copy of an exported folder, brought up to date."""
    upgrade_exported(shutil.copytree(export, target))
    return target


@pytest.mark.parametrize("form", ["plain", "module"])
def test_its_exports_load_once_upgraded(frozen: Path, tmp_path: Path, form: str) -> None:
    kind = {"plain": "mean", "module": "glot"}[form]
    *_, key = (k for k, v in trained(frozen / "home").items() if v == kind)
    then = pq.read_table(frozen / "vectors" / f"{key.partition('/')[2]}.parquet")
    folder = upgraded(frozen / form, tmp_path / form)
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=form == "module")
    assert isinstance(model[0], permafrost.FrozenBackboneHead) == (form == "module")
    # The vectors are from features in float16, these are not.
    np.testing.assert_allclose(
        model.encode(TEXTS),
        np.stack(then.column("embedding").to_numpy()),
        rtol=2**-10,
        atol=2**-12,
    )


def test_an_upgrade_changes_names_and_no_vector(frozen: Path, tmp_path: Path) -> None:
    before = permafrost.load_exported(frozen / "module", device="cpu").encode(TEXTS)
    folder = upgraded(frozen / "module", tmp_path / "module")
    assert np.array_equal(permafrost.load_exported(folder, device="cpu").encode(TEXTS), before)


@pytest.mark.deep
def test_the_same_experiment_computes_no_token(
    frozen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = shutil.copytree(frozen, tmp_path / "here")
    monkeypatch.chdir(here)
    result = run_serially(Path("experiment.yaml"), here / "home")
    extractions = list(ArtifactStore(here / "home").all("extract"))
    assert sum(m.summary["n_tokens_computed"] for m in extractions) > 0, "once, then"
    assert not result.reused, "keys of an earlier version are not those of today"
    heads = set(trained(here / "home"))
    kept = collect(here / "home", [])
    assert not {str(ref) for ref in kept.refs} & heads, "nobody asked for its heads to go"
    assert kept.n_older == 36
    assert {str(ref) for ref in collect(here / "home", [], "remove").refs} >= {
        str(m.ref) for m in ArtifactStore(here / "home").all() if m.key_version == 1
    }
    made = result.computed["extract"]
    assert [m.summary["n_tokens_computed"] for m in extractions[-made:]] == [0] * made
