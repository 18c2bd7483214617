"""Evaluations of whitened vectors and of unified embeddings, against the same scores written out."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import pytrec_eval
import torch
from scipy.stats import spearmanr

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.stages.freeze import load_pair_fit
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from permafrost.storage.readers import open_reader
from tests.flows.experiments import pairs, rows_of, run_in, write
from tests.flows.looked import Looked, look
from tests.stages.mteb_evaluation.small_tasks import task, write_rows, write_task

pytestmark = pytest.mark.deep

METHODS = ("whitened", "unified", "projected")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("data")
    for kind in ("sts", "retrieval"):
        write_task(found, kind)
    for seed, split in enumerate(("train", "dev", "test")):
        pairs(found / f"{split}.parquet", 24, seed)
    corpus = pq.read_table(found / "retrieval" / "corpus.parquet").column("text").to_pylist()
    # Two of the documents are among the texts of train; the others are of this task alone.
    write_rows(found / "texts.parquet", [{"text": t} for t in [*corpus[:2], "snow ice", "lake"]])
    return found


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    files = {split: str(folder / f"{split}.parquet") for split in ("train", "dev", "test")}
    columns = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    sizes = {"early": 8, "late": 8}
    training = {"max_epochs": 2, "evaluate_every": 1, "batch_size": 8, "latents": {"at": "mean"}}
    return {
        "name": "fitted",
        "backbone": {"source": str(backbone)},
        "store_dtype": "float32",
        "tasks": {"pairs": {"kind": "files", "files": files, "task": columns}},
        "methods": {
            "whitened": {
                "kind": "embed",
                "layers": "2",
                "whitening": {"n_components": 8},
                "normalise": "l2",
            },
            "unified": {
                "kind": "layers",
                "head": {"kind": "unified", "encoders": sizes},
                **training,
            },
            "projected": {
                "kind": "layers",
                "head": {"kind": "unified_projection", "encoders": sizes, "d_embed": 6},
                **training,
            },
        },
        "evaluations": {
            "mteb": {
                "tasks": {
                    k: {"kind": "local", "type": k, "path": str(folder / k)}
                    for k in ("sts", "retrieval")
                },
                "methods": list(METHODS),
                "fitted_on": "pairs",
            }
        },
        "seeds": [0, 1],
        "report": {"title": "Fitted"},
        "runtime": {"workers": 2, "extract": {"device": "cpu"}},
    }


@pytest.fixture(scope="module")
def first_run(
    folder: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path, PipelineResult]:
    return run_in(tmp_path_factory.mktemp("run"), experiment(folder, tiny_bert))


def rows(dag: Looked, array: str, corpus: str) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """What is stored of the texts of a corpus, one block per text."""
    (store,) = dag.open_stores()
    found = dag.corpus(corpus)
    reader = open_reader(store, array, found.digests, budget_bytes=1 << 28)
    (batch,) = [b for _, b in reader.in_order(len(found.texts))]
    return list(batch), found.texts


def means(dag: Looked, corpus: str) -> dict[str, np.ndarray]:
    """Mean of layer 2 by text."""
    blocks, texts = rows(dag, "hidden/2", corpus)
    return {t: b.mean(axis=0, dtype=np.float64) for t, b in zip(texts, blocks, strict=True)}


def latents(dag: Looked, corpus: str) -> dict[str, np.ndarray]:
    """All pooled layers by text, `[l, d]`."""
    layers = [rows(dag, f"pooled/hidden_mean/{k}", corpus) for k in (1, 2, 3)]
    return {
        text: np.concatenate([blocks[i] for blocks, _ in layers])
        for i, text in enumerate(layers[0][1])
    }


def whitened(dag: Looked, corpus: str) -> dict[str, np.ndarray]:
    """By text, whitened on the texts of train with a singular value decomposition."""
    train = dag.corpus("pairs").split("train")
    columns = [train.column(c).to_pylist() for c in ("text", "text_pair")]
    texts = {dag.corpus("pairs").texts[i] for column in columns for i in column}
    fitted_on = np.stack([v for t, v in means(dag, "pairs").items() if t in texts])
    mean = fitted_on.mean(axis=0)
    _, spread, directions = np.linalg.svd(fitted_on - mean, full_matrices=False)
    scale = spread[:8] / np.sqrt(len(fitted_on))
    found = {t: ((v - mean) @ directions[:8].T) / scale for t, v in means(dag, corpus).items()}
    return {t: v / np.linalg.norm(v) for t, v in found.items()}


def unified(dag: Looked, method: str, seed: int, corpus: str) -> dict[str, np.ndarray]:
    """By text, as the trained head embeds it."""
    head = load_pair_fit(dag.artifacts.open(dag.nodes.fits[method, "pairs", seed].spec.ref)).head()
    given = latents(dag, corpus)
    with torch.no_grad():
        vectors = head.embed(torch.from_numpy(np.stack(list(given.values()))))
    found = torch.nn.functional.normalize(vectors.double(), dim=1).numpy()
    return dict(zip(given, found, strict=True))


def made(dag: Looked, method: str, seed: int, corpus: str) -> dict[str, np.ndarray]:
    return whitened(dag, corpus) if method == "whitened" else unified(dag, method, seed, corpus)


NEAR_TIE = 2.5e-7
"""Cosines in float32 of vectors this near to each other may rank in either order: which one it is depends on
the instructions of the processor."""


def ndcg_at_10(
    relevant: dict[str, dict[str, int]], ranked: dict[str, dict[str, float]], favour: float
) -> float:
    """Mean over queries, with `favour` added to the cosines of relevant documents."""
    favoured = {
        q: {d: s + favour * (relevant[q].get(d, 0) > 0) for d, s in found.items()}
        for q, found in ranked.items()
    }
    judged = pytrec_eval.RelevanceEvaluator(relevant, {"ndcg_cut.10"}).evaluate(favoured)
    return float(np.mean([found["ndcg_cut_10"] for found in judged.values()]))


CELLS = [("whitened", 0), *((m, s) for m in ("unified", "projected") for s in (0, 1))]


@pytest.mark.parametrize(("method", "seed"), CELLS)
def test_scores_are_those_of_the_same_vectors_made_by_hand(
    first_run: tuple[Path, Path, PipelineResult], folder: Path, method: str, seed: int
) -> None:
    path, home, result = first_run
    dag = look(path, home)
    scores = {
        r["task"]: r["test"]
        for r in rows_of(result)
        if (r["method"], r["seed"], r["n_dev"]) == (method, seed, 0)
    }
    graded = task(folder, "sts").read().tables["test"]
    vectors = made(dag, method, seed, "sts · text of evaluation")
    sides = [np.stack([vectors[t] for t in graded[f"sentence{i}"]]) for i in (1, 2)]
    # Of unit vectors, and exactly 0 between equal texts, of which there are some.
    distances = np.square(sides[0] - sides[1]).sum(axis=1) / 2
    expected = -spearmanr(distances, graded["score"]).statistic
    assert scores["sts"] == pytest.approx(expected, abs=1e-6)
    data = task(folder, "retrieval").read()
    asked = made(dag, method, seed, "retrieval · query of evaluation")
    there = made(dag, method, seed, "retrieval · document of evaluation")
    corpus, queries = data.tables["corpus"], data.tables["queries"]
    titled = [f"{a} {b}".strip() for a, b in zip(corpus["title"], corpus["text"], strict=True)]
    ranked = {
        q: {d: float(asked[t] @ there[u]) for d, u in zip(corpus["id"], titled, strict=True)}
        for q, t in zip(queries["id"], queries["text"], strict=True)
    }
    low, high = (ndcg_at_10(data.relevant, ranked, favour) for favour in (-NEAR_TIE, NEAR_TIE))
    assert low - 1e-4 <= scores["retrieval"] <= high + 1e-4
    assert high - low < 0.1, "bounds so far apart would let a wrong score pass"


def test_what_was_fitted_is_part_of_the_key_and_trained_numbers_are_counted(
    first_run: tuple[Path, Path, PipelineResult], folder: Path, tmp_path: Path
) -> None:
    path, home, _ = first_run
    dag = look(path, home)
    for method, seed in CELLS:
        node = dag.nodes.evaluations[method, "sts", seed]
        fitted = dag.nodes.fits[method, "pairs", seed].spec.ref
        assert node.input("fitted").ref == str(fitted)
        metrics = read_json(dag.artifacts.open(node.spec.ref) / "metrics.json")
        assert (metrics["n_parameters"] > 0) == (method != "whitened")
    # Other train texts, another whitening: whatever reads it has another key.
    for split, seed in (("train", 7), ("dev", 1), ("test", 2)):
        pairs(tmp_path / f"{split}.parquet", 24, seed)
    files = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "dev", "test")}
    content = experiment(folder, Path(load_experiment(path).backbone.source))
    content["tasks"]["pairs"]["files"] = files
    other = look(write(tmp_path / "other.yaml", content), home)
    for cell in dag.nodes.evaluations:
        assert other.nodes.evaluations[cell].spec.ref != dag.nodes.evaluations[cell].spec.ref
    assert not run_serially(path, home).computed


def test_texts_of_a_pretraining_count_as_learnt_from(
    folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert) | {"seeds": [0]}
    content["tasks"]["texts"] = {
        "kind": "files",
        "files": {"all": str(folder / "texts.parquet")},
        "task": {"kind": "unlabelled"},
    }
    unified = content["methods"]["unified"]
    encoders = {"encoders": unified["head"]["encoders"], "max_epochs": 1, "seed": 0}
    content["pretrainings"] = {
        "generic": {"task": "texts", "latents": unified["latents"], "autoencoder": encoders}
    }
    content["methods"] = {"scratch": unified, "pretrained": {**unified, "encoders": "generic"}}
    tasks = content["evaluations"]["mteb"]["tasks"]
    content["evaluations"]["mteb"] |= {
        "tasks": {"retrieval": tasks["retrieval"]},
        "methods": ["scratch", "pretrained"],
    }
    path, home, _ = run_in(tmp_path, content)
    dag = look(path, home)
    documents = set(dag.corpus("retrieval · document of evaluation").texts)
    learnt = {"scratch": set(), "pretrained": set(dag.corpus("texts").texts)}
    assert documents & learnt["pretrained"]
    for method, texts in learnt.items():
        node = dag.nodes.evaluations[method, "retrieval", 0]
        counts = read_json(dag.artifacts.open(node.spec.ref) / "metrics.json")["texts_in_train"]
        assert counts["document"]["n_in_train"] == len(documents & texts)


def test_whitening_can_be_fitted_on_texts_that_nothing_is_scored_on(
    first_run: tuple[Path, Path, PipelineResult], folder: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = experiment(folder, tiny_bert)
    content["tasks"] = {
        "texts": {
            "kind": "files",
            "files": {"train": str(folder / "texts.parquet")},
            "task": {"kind": "unlabelled"},
        }
    }
    whitening = content["methods"]["whitened"] | {"whitening": {"n_components": 2}}
    content["methods"] = {"whitened": whitening, "mean": {"kind": "embed", "layers": "2"}}
    content["evaluations"]["mteb"] |= {"methods": ["whitened", "mean"], "fitted_on": "texts"}
    path, home = write(tmp_path / "experiment.yaml", content), tmp_path / "home"
    result = run_serially(path, home)
    assert result.computed == {"corpus": 4, "extract": 4, "embed": 1, "evaluate": 4, "report": 1}
    dag = look(path, home)
    found = {
        (m, t): read_json(dag.artifacts.open(node.spec.ref) / "metrics.json")["texts_in_train"]
        for (m, t, _), node in dag.nodes.evaluations.items()
    }
    assert found["mean", "sts"] is found["mean", "retrieval"] is None
    # The first document has no title, so it alone is a text of train as it stands.
    documents = set(dag.corpus("retrieval · document of evaluation").texts)
    shared = documents & set(dag.corpus("texts").texts)
    assert len(shared) == 1
    assert found["whitened", "retrieval"] == {
        "query": {"n_texts": 7, "n_in_train": 0},
        "document": {"n_texts": len(documents), "n_in_train": 1},
    }
    content["evaluations"]["mteb"]["fitted_on"] = None
    without = write(tmp_path / "without.yaml", content)
    with pytest.raises(InputError, match=r"'whitened', which fits its whitening on a task; say on"):
        load_experiment(without)
