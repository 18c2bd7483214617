"""Heads trained on the queries of one collection and evaluated on it and, zero-shot, on others."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval

from permafrost.flows.pipeline import PipelineResult, run_serially
from permafrost.stages.encoder import load_encoder
from permafrost.storage.durable import read_json
from permafrost.storage.features.store import all_stores
from tests.flows.experiments import rows_of, write
from tests.flows.looked import Looked, look
from tests.stages.extraction.tiny_models import WORDS
from tests.stages.mteb_evaluation.small_tasks import task, write_rows, write_task

N_TRAIN, N_TEST = 20, 8


def collection(folder: Path) -> None:
    """Queries that are some words of their document, two of them for every document."""
    rng = random.Random(4)
    documents = [rng.sample(WORDS[:30], 9) for _ in range((N_TRAIN + N_TEST) // 2)]
    n = N_TRAIN + N_TEST
    queries = [" ".join(rng.sample(documents[i % len(documents)], 5)) for i in range(n)]
    corpus = [
        {"doc_id": str(i), "title": words[0], "text": " ".join(words[1:])}
        for i, words in enumerate(documents)
    ]
    judged = [{"query_id": i, "doc_id": str(i % len(documents)), "score": 1} for i in range(n)]
    write_rows(folder / "corpus.parquet", corpus)
    write_rows(
        folder / "queries.parquet", [{"query_id": i, "text": q} for i, q in enumerate(queries)]
    )
    write_rows(folder / "qrels_train.parquet", judged[:N_TRAIN])
    write_rows(folder / "qrels_test.parquet", judged[N_TRAIN:])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("data")
    collection(found / "mine")
    for kind in ("retrieval", "reranking"):
        write_task(found, kind)
    return found


def experiment(folder: Path, backbone: Path) -> dict[str, Any]:
    def head(**fields: Any) -> dict[str, Any]:
        return {
            "kind": "head",
            "layer": "hidden/2",
            "optim": {"lr": 0.01, "batch_size": 8, "max_epochs": 2},
            "loss": {"kind": "contrastive", "similarity": "cosine"},
            "head": fields,
        }

    local = {"kind": "local", "path": str(folder / "mine")}
    return {
        "name": "retrieval",
        "backbone": {"source": str(backbone)},
        "capture": "hidden=2@tokens",
        "store_dtype": "float32",
        "tasks": {
            "pairs": {
                "kind": "retrieval",
                "path": str(folder / "mine"),
                "qrels": {"train": "qrels_train", "test": "qrels_test"},
                "dev": {"kind": "from_train_queries", "fraction": 0.25},
            }
        },
        "methods": {
            "untrained": {"kind": "embed", "layers": "2"},
            "scorer": head(kind="scorer", hidden=8),
            "GLOT": head(kind="glot", n_convs=1, hidden=8, tau=0.3),
        },
        "evaluations": {
            "search": {
                "tasks": {
                    "in domain": {**local, "type": "retrieval"},
                    "zero-shot": {**local, "type": "retrieval", "path": str(folder / "retrieval")},
                    "reranking": {**local, "type": "reranking", "path": str(folder / "reranking")},
                },
                "methods": ["untrained", "scorer", "GLOT"],
                "fitted_on": "pairs",
            }
        },
        "seeds": [1],
        "report": {"title": "Retrieval", "averages": "none"},
        "runtime": {"workers": 2, "extract": {"device": "cpu"}},
    }


@pytest.fixture(scope="module")
def run(
    folder: Path, tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Looked, PipelineResult]:
    place = tmp_path_factory.mktemp("run")
    path = write(place / "experiment.yaml", experiment(folder, tiny_bert))
    result = run_serially(path, place / "home")
    return look(path, place / "home"), result


@pytest.mark.deep
def test_documents_of_pairs_and_of_searches_are_stored_once(
    run: tuple[Looked, PipelineResult],
) -> None:
    dag, result = run
    assert result.computed == {
        "corpus": 7,
        "extract": 7,
        "fit": 2,
        "score": 2,
        "evaluate": 9,
        "report": 1,
    }
    pairs, searched = dag.corpus("pairs"), dag.corpus("in domain · document of evaluation")
    assert set(searched.texts) < set(pairs.texts)
    (store,) = all_stores(dag.home)
    texts = {d for name in dag.nodes.corpora for d in dag.corpus(name).digests}
    assert sum(len(store.segment(s).table) for s in store.segments()) == len(texts)


@pytest.mark.deep
@pytest.mark.parametrize("name", ["in domain", "zero-shot"])
@pytest.mark.parametrize("method", ["scorer", "GLOT"])
def test_a_score_is_that_of_the_trained_head_loaded_as_an_encoder(
    run: tuple[Looked, PipelineResult], folder: Path, method: str, name: str
) -> None:
    dag, result = run
    data = task(folder, "mine" if name == "in domain" else "retrieval", type="retrieval").read()
    corpus, queries = data.tables["corpus"], data.tables["queries"]
    texts = [f"{a} {b}".strip() for a, b in zip(corpus["title"], corpus["text"], strict=True)]
    fitted = dag.nodes.fits[method, "pairs", 1].spec.ref
    encoder = load_encoder(dag.home, str(fitted), device="cpu")
    asked, there = (encoder.encode(side).astype(np.float64) for side in (queries["text"], texts))
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    there /= np.linalg.norm(there, axis=1, keepdims=True)
    ranked = {
        query: dict(zip(corpus["id"], row, strict=True))
        for query, row in zip(queries["id"], (asked @ there.T).tolist(), strict=True)
    }
    judged = pytrec_eval.RelevanceEvaluator(data.relevant, {"ndcg_cut.10"}).evaluate(ranked)
    expected = np.mean([found["ndcg_cut_10"] for found in judged.values()])
    (found,) = [r["test"] for r in rows_of(result) if (r["method"], r["task"]) == (method, name)]
    assert found == pytest.approx(expected, abs=1e-4)


@pytest.mark.deep
def test_texts_that_a_head_was_trained_on_are_counted(run: tuple[Looked, PipelineResult]) -> None:
    dag, _ = run
    counted = {
        cell: read_json(dag.artifacts.open(node.spec.ref) / "metrics.json")["texts_in_train"]
        for cell, node in dag.nodes.evaluations.items()
    }
    corpus = dag.corpus("pairs")
    rows = [r for r in corpus.examples.to_pylist() if r["split"] in ("train", "dev")]
    known = {corpus.texts[r[side]] for r in rows for side in ("text", "text_pair")}
    for method in ("scorer", "GLOT"):
        for name in ("in domain", "zero-shot"):
            for role in ("query", "document"):
                asked = set(dag.corpus(f"{name} · {role} of evaluation").texts)
                expected = {"n_texts": len(asked), "n_in_train": len(asked & known)}
                assert counted[method, name, 1][role] == expected
    # Every document has a train query; no query is on both sides, and other collections share nothing.
    assert counted["scorer", "in domain", 1]["document"]["n_in_train"] > 10
    assert counted["scorer", "in domain", 1]["query"] == {"n_texts": N_TEST, "n_in_train": 0}
    assert counted["scorer", "zero-shot", 1]["document"]["n_in_train"] == 0
    assert counted["untrained", "in domain", 1] is None
