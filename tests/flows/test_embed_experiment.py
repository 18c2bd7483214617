"""An experiment of methods without training: recipes, ensembles, layers chosen on dev, layer curves."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy.stats import spearmanr

from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.stages.extraction import backbone as loading
from permafrost.stages.extraction import computing
from permafrost.storage.errors import InputError
from permafrost.storage.features.store import all_stores
from tests.flows.experiments import pairs, run_in, write
from tests.flows.looked import look
from tests.stages.extraction.tiny_models import WORDS, save_model


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("sts")
    rng = random.Random(5)
    long = [" ".join(rng.choices(WORDS[:30], k=24)) for _ in range(12)]
    (folder / "long.txt").write_text("\n".join(long))
    found = {s: str(pairs(folder / f"{s}.parquet", 30, i)) for i, s in enumerate(("dev", "test"))}
    return {
        **found,
        "long": str(folder / "long.txt"),
        "llama": str(save_model("llama", folder / "llama")),
    }


def experiment(files: dict[str, str]) -> dict[str, Any]:
    two_prompts = ["Topic of {text} :", "Mood of {text} :"]
    return {
        "name": "training-free",
        "backbone": {"source": files["llama"]},
        "recipes": {
            "eol": "prompt_eol",
            "two": {"kind": "meta_eol", "prompts": two_prompts},
            "htp": "htp:block=tokens,size=3",
        },
        "tasks": {
            "pairs": {
                "kind": "files",
                "files": {"dev": files["dev"], "test": files["test"]},
                "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
            },
            "halves": {
                "kind": "segments",
                "source": {
                    "kind": "files",
                    "files": {"all": files["long"]},
                    "task": {"kind": "unlabelled"},
                },
                "min_words": 8,
            },
        },
        "methods": {
            "mean": {"kind": "embed"},
            "VA": {"kind": "embed", "method": "va", "layers": "auto"},
            "AlignedWVA": {"kind": "embed", "method": "aligned_wva", "recipe": "eol"},
            "MetaEOL": {"kind": "embed", "method": "last", "recipe": "two"},
            "HTP": {"kind": "embed", "recipe": "htp", "layers": "2"},
        },
        "probes": {
            "layers": {
                "tasks": ["pairs", "halves"],
                "methods": {"hidden states": {"method": "hs"}, "values": {"method": "va"}},
            }
        },
        "report": {"title": "Without training"},
    }


@pytest.fixture(scope="module")
def first_run(
    files: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, PipelineResult]:
    return run_in(tmp_path_factory.mktemp("run"), experiment(files))


@pytest.mark.deep
def test_every_method_is_scored_and_every_layer_drawn(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    _, home, result = first_run
    assert result.computed == {
        "corpus": 2,
        "extract": 6,
        "embed": 5,
        "probe": 4,
        "score": 5,
        "report": 1,
    }
    # plain, eol, htp, and one per prompt of the ensemble.
    assert len(all_stores(home)) == 5
    table = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    assert {r["method"] for r in table} == {"mean", "VA", "AlignedWVA", "MetaEOL", "HTP"}
    assert {r["task"] for r in table} == {"pairs"}
    assert all(-1 <= r["test"] <= 1 for r in table)
    curves = pq.read_table(result.report.with_name("layer_curves.parquet")).to_pylist()
    found = {(c["method"], c["task"], c["layer"]) for c in curves}
    names = ["halves · recall@1", "halves · recall@10", "halves · recall@5", "halves · mrr"]
    tasks = ["pairs · Spearman", *names]
    methods = ["hidden states", "values"]
    assert found == {(m, t, k) for m in methods for t in tasks for k in (1, 2, 3)}
    assert {c["probe"] for c in curves} == {"layers"}
    page = result.report.read_text(encoding="utf-8")
    assert "AlignedWVA" in page
    assert "halves · recall@1" in page
    assert "majority class" not in page


def test_the_scores_are_those_of_the_vectors(
    first_run: tuple[Path, Path, PipelineResult],
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    corpus = dag.corpus("pairs")
    rows = pq.read_table(result.report.with_name("results.parquet")).to_pylist()
    for name in ("mean", "VA"):
        node = dag.nodes.fits[name, "pairs", 0]
        vectors = np.load(dag.artifacts.open(node.spec.ref) / "vectors.npy").astype(np.float64)
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        test = corpus.split("test")
        first, second = (test.column(c).to_numpy() for c in ("text", "text_pair"))
        # Rounded, so that pairs of equal texts tie as they do in exact arithmetic.
        cosines = (unit[first] * unit[second]).sum(axis=1).round(12)
        expected = spearmanr(cosines, test.column("label").to_numpy()).statistic
        (row,) = [r for r in rows if r["method"] == name]
        assert row["test"] == pytest.approx(expected, abs=1e-9)


def test_one_load_one_forward_per_text_and_recipe_and_then_nothing(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, seen = 0, list[int]()
    load, forward = loading.load_backbone, computing.forward

    def counted_load(*args: Any, **kwargs: Any) -> Any:
        nonlocal loads
        loads += 1
        return load(*args, **kwargs)

    def counted_forward(backbone: Any, encoded: Any, *rest: Any) -> Any:
        seen.append(len(encoded))
        return forward(backbone, encoded, *rest)

    monkeypatch.setattr(loading, "load_backbone", counted_load)
    monkeypatch.setattr(computing, "forward", counted_forward)
    path = write(tmp_path / "experiment.yaml", experiment(files))
    home = tmp_path / "home"
    run_serially(path, home)
    dag = look(path, home)
    n_pairs = len(dag.corpus("pairs").texts)
    n_halves = len(dag.corpus("halves").texts)
    assert loads == 1
    assert sum(seen) == 5 * n_pairs + n_halves, "probes read the experiment's own recipe only"
    seen.clear()
    again = run_serially(path, home)
    assert not again.computed
    assert (loads, seen) == (1, [])
    more = ["methods.HS half={kind: embed, method: hs, layers: half}"]
    third = run_serially(path, home, more)
    assert third.computed == {"embed": 1, "score": 1, "report": 1}
    assert (loads, seen) == (1, [])


def test_plan_counts_every_store(files: dict[str, str], tmp_path: Path) -> None:
    path = write(tmp_path / "experiment.yaml", experiment(files))
    plan = look(path, tmp_path / "home").plan()
    assert len(plan.extractions) == 5
    assert plan.n_tokens == sum(e.n_tokens for e in plan.extractions) > 0
    assert plan.as_json()["n_new_texts"] == sum(e.n_new_texts for e in plan.extractions)
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"methods": {"x": {"kind": "embed", "recipe": "no"}}},
            "reads the recipe 'no'; there are default",
        ),
        ({"recipes": {"default": "plain"}}, "'default' is the name of 'recipe'"),
        (
            {"probes": {"p": {"tasks": ["no"], "methods": {"x": {"method": "hs"}}}}},
            "names the task 'no'; there are pairs, halves",
        ),
        (
            {"methods": {"x": {"kind": "linear", "layers": "1"}}},
            "is scored on tasks of kind classification or pair_classification, and there is none",
        ),
        ({"methods": {"x": {"kind": "embed", "layers": "9"}}}, "hidden=9"),
        ({"recipes": {"eol": "prompt_eol:spelling=curly"}}, "spelling"),
    ],
)
def test_wrong_experiments_say_what_is_wrong(
    files: dict[str, str], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    content = experiment(files)
    for name, value in change.items():
        content[name] = {**content[name], **value}
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError) as caught:
        look(path, tmp_path / "home")
    assert says in str(caught.value)


def test_an_encoder_refuses_recipes_that_need_a_decoder(
    files: dict[str, str], tmp_path: Path
) -> None:
    content = experiment(files)
    content["backbone"] = {"source": str(save_model("bert", tmp_path / "bert"))}
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError, match=r"htp.*encoder|encoder.*htp"):
        look(path, tmp_path / "home")
