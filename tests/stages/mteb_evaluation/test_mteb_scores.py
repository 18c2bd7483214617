"""Main scores against scipy, scikit-learn and pytrec_eval on the same vectors; scores of constant ones."""

import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import pytrec_eval
import yaml
from datasets import Dataset, DatasetDict
from mteb.abstasks.retrieval_dataset_loaders import RetrievalDatasetLoader
from mteb.abstasks.text import reranking
from mteb.abstasks.text.reranking import AbsTaskReranking
from pydantic import ValidationError
from scipy.stats import spearmanr
from sklearn.cluster import MiniBatchKMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, average_precision_score, v_measure_score

from permafrost.stages.mteb_evaluation import evaluate_task, examples, running
from permafrost.stages.mteb_evaluation.build import build_task
from permafrost.stages.mteb_evaluation.examples import n_drawn
from permafrost.stages.mteb_evaluation.running import run_task
from permafrost.storage.durable import read_json
from permafrost.storage.errors import InputError
from permafrost.storage.ragged import Ragged
from tests.stages.embed.corpus_features import SIZES, WIDTH
from tests.stages.embed.memory_features import MemoryFeatures
from tests.stages.extraction.tiny_models import WORDS
from tests.stages.mteb_evaluation.small_tasks import KINDS, task, write_rows, write_tasks
from tests.stages.mteb_evaluation.word_vectors import WordStates, embedding, mean_of_words

pytestmark = [
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def main_score(folder: Path, kind: str, **fields: Any) -> float:
    return evaluate_task(task(folder, kind, **fields), kind, embedding()).metrics["test"]


def unit(texts: list[str]) -> np.ndarray:
    vectors = mean_of_words(texts).astype(np.float64)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def cosines(first: list[str], second: list[str]) -> np.ndarray:
    return (unit(first) * unit(second)).sum(axis=1)


def test_sts(folder: Path) -> None:
    rows = task(folder, "sts").read().tables["test"]
    found = cosines(rows["sentence1"], rows["sentence2"]).round(6)
    expected = spearmanr(found, rows["score"]).statistic
    assert main_score(folder, "sts") == pytest.approx(expected, abs=1e-6)


def test_pair_classification(folder: Path) -> None:
    rows = task(folder, "pair_classification").read().tables["test"]
    first, second = (mean_of_words(rows[f"sentence{i}"]).astype(np.float64) for i in (1, 2))
    similarities = [
        cosines(rows["sentence1"], rows["sentence2"]),
        (first * second).sum(axis=1),
        -np.linalg.norm(first - second, axis=1),
        -np.abs(first - second).sum(axis=1),
    ]
    expected = max(average_precision_score(rows["labels"], s) for s in similarities)
    assert main_score(folder, "pair_classification") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("per_label", [4, 8])
def test_classification(folder: Path, per_label: int) -> None:
    tables = task(folder, "classification").read().tables
    train, test = (mean_of_words(tables[s]["text"]) for s in ("train", "test"))
    labels, scores = np.array(tables["train"]["label"]), list[float]()
    order = list(range(len(labels)))
    for _ in range(10):
        np.random.RandomState(42).shuffle(order)
        drawn = [
            i
            for place, i in enumerate(order)
            if (labels[order[:place]] == labels[i]).sum() < per_label
        ]
        model = LogisticRegression(max_iter=100, random_state=42).fit(train[drawn], labels[drawn])
        scores.append(accuracy_score(tables["test"]["label"], model.predict(test)))
    found = main_score(folder, "classification", samples_per_label=per_label)
    assert found == pytest.approx(np.mean(scores), abs=1e-9)


def test_clustering(folder: Path) -> None:
    rows = task(folder, "clustering").read().tables["test"]
    vectors, labels = mean_of_words(rows["sentences"]), np.array(rows["labels"])
    draw, scores = random.Random(42), list[float]()
    model = MiniBatchKMeans(
        n_clusters=3, batch_size=512, init="k-means++", n_init=1, random_state=42
    )
    for _ in range(10):
        chosen = draw.choices(range(len(vectors)), k=16_384)
        scores.append(v_measure_score(labels[chosen], model.fit_predict(vectors[chosen])))
    assert main_score(folder, "clustering") == pytest.approx(np.mean(scores), abs=1e-9)


def test_clustering_counts_the_texts_that_mteb_draws(folder: Path) -> None:
    config = task(folder, "clustering", max_documents=10)
    assert evaluate_task(config, "clustering", embedding()).metrics["n_test"] == 10
    built = build_task(config, "x", config.read())
    assert [n_drawn(built, n) for n in (9, 45)] == [9, 10]
    built.max_document_to_embed, built.max_fraction_of_documents_to_embed = None, 0.1
    assert n_drawn(built, 45) == 4


def test_a_score_that_mteb_has_no_number_for_is_told_with_those_that_are(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = {"test": [{"accuracy": np.nan, "f1": 0.5, "hf_subset": "default"}]}
    monkeypatch.setattr(running, "run_task", lambda *_: scores)
    monkeypatch.setattr(examples, "example_scores", lambda *_: None)
    with pytest.raises(InputError, match=r"is not a number: mteb gives none .* Numbers are: f1$"):
        evaluate_task(task(folder, "classification"), "x", embedding())


def ranked(data: Any) -> dict[str, dict[str, float]]:
    """Cosine of every query with its candidates."""
    corpus, queries = data.tables["corpus"], data.tables["queries"]
    titles = corpus.get("title", [""] * len(corpus["text"]))
    texts = [f"{a} {b}".strip() for a, b in zip(titles, corpus["text"], strict=True)]
    all_cosines = (unit(queries["text"]) @ unit(texts).T).tolist()
    return {
        query: {
            d: c
            for d, c in zip(corpus["id"], row, strict=True)
            if data.candidates is None or d in data.candidates[query]
        }
        for query, row in zip(queries["id"], all_cosines, strict=True)
    }


@pytest.mark.parametrize(
    ("kind", "measure", "key"),
    [("retrieval", "ndcg_cut.10", "ndcg_cut_10"), ("reranking", "map", "map")],
)
def test_searches(folder: Path, kind: str, measure: str, key: str) -> None:
    data = task(folder, kind).read()
    found = pytrec_eval.RelevanceEvaluator(data.relevant, {measure}).evaluate(ranked(data))
    expected = np.mean([scores[key] for scores in found.values()])
    assert len(found) == data.n_examples == {"retrieval": 7, "reranking": 6}[kind]
    assert main_score(folder, kind) == pytest.approx(expected, abs=1e-5)


def of_mteb(built: Any, data: Any, tmp_path: Path) -> float:
    """The score of a task of mteb's own class with data that mteb has read."""
    built.dataset = {"default": {"test": data}}
    made = embedding()
    (row,) = run_task(built, made, "mean", made.digest, tmp_path / "kept")["test"]
    return row["main_score"]


def test_queries_with_irrelevant_documents_alone_count_as_in_mteb(
    folder: Path, tmp_path: Path
) -> None:
    files, hub = tmp_path / "retrieval", tmp_path / "hub"
    shutil.copytree(folder / "retrieval", files)
    judged: list[Any] = pq.read_table(files / "qrels_test.parquet").to_pylist()
    judged += [{"query_id": "q7", "doc_id": f"d{i}", "score": -i} for i in (0, 1)]
    write_rows(files / "qrels_test.parquet", judged)
    # As mteb's tasks are on the hub.
    renamed = {"query_id": "query-id", "doc_id": "corpus-id"}
    write_rows(
        hub / "qrels.parquet",
        [{renamed.get(k, k): v for k, v in r.items()} for r in judged],
    )
    for name in ("corpus", "queries"):
        rows = pq.read_table(files / f"{name}.parquet").to_pylist()
        write_rows(hub / f"{name}.parquet", [{"_id": next(iter(r.values())), **r} for r in rows])
    configs = [
        {"config_name": name, "data_files": [{"split": "test", "path": f"{name}.parquet"}]}
        for name in ("corpus", "queries", "qrels")
    ]
    (hub / "README.md").write_text(f"---\n{yaml.safe_dump({'configs': configs})}---\n")
    loader: Any = RetrievalDatasetLoader
    loaded = loader(str(hub), None, split="test", config="default").load()
    assert sorted(loaded["queries"]["id"]) == [f"q{i}" for i in range(8)]
    config = task(tmp_path, "retrieval")
    theirs = of_mteb(build_task(config, "retrieval", config.read()), loaded, tmp_path)
    assert main_score(tmp_path, "retrieval") == pytest.approx(theirs, abs=1e-5)
    assert main_score(folder, "retrieval") == pytest.approx(theirs * 8 / 7, abs=2e-5)


def test_queries_without_candidates_of_both_kinds_are_left_out_as_in_mteb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(0)
    text = [" ".join(rng.choices(WORDS[:30], k=6)) for _ in range(40)]
    sides = ((2, 3), (0, 2), (1, 0), (1, 4))
    rows = [
        {"query": text[i], "positive": text[9 * i + 4 :][:n], "negative": text[9 * i + 7 :][:m]}
        for i, (n, m) in enumerate(sides)
    ]
    write_rows(tmp_path / "reranking" / "test.parquet", rows)
    config = task(tmp_path, "reranking")
    built = build_task(config, "reranking", config.read())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old: Any = type("Old", (AbsTaskReranking,), {"metadata": built.metadata})()
    monkeypatch.setattr(reranking, "OLD_FORMAT_RERANKING_TASKS", ["reranking"])
    old.transform_old_dataset_format(DatasetDict({"test": Dataset.from_list(rows)}))
    theirs = of_mteb(built, old.dataset["default"]["test"], tmp_path)
    assert config.read().n_examples == 2
    assert main_score(tmp_path, "reranking") == pytest.approx(theirs, abs=1e-5)


def test_summarization(folder: Path) -> None:
    rows = task(folder, "summarization").read().tables["test"]
    correlations = [
        spearmanr((unit(machine) @ unit(human).T).max(axis=1).round(6), grades).statistic
        for machine, human, grades in zip(
            rows["machine_summaries"], rows["human_summaries"], rows["relevance"], strict=True
        )
    ]
    found = main_score(folder, "summarization")
    assert found == pytest.approx(np.mean(correlations), abs=1e-6)


def test_what_is_recorded(folder: Path, tmp_path: Path) -> None:
    made = embedding()
    result = evaluate_task(task(folder, "retrieval"), "small", made)
    result.save(tmp_path)
    metrics = read_json(tmp_path / "metrics.json")
    assert metrics == result.metrics
    assert (metrics["metric"], metrics["category"]) == ("ndcg_at_10", "Retrieval")
    assert (metrics["n_test"], metrics["dev"], metrics["n_parameters"]) == (7, None, 0)
    assert metrics["embedding"] == made.digest
    (scores,) = read_json(tmp_path / "scores.json")["test"]
    assert scores["main_score"] == scores["ndcg_at_10"] == metrics["test"]
    assert scores["recall_at_1"] <= scores["recall_at_10"]


def test_another_of_mtebs_scores_can_be_the_result(folder: Path) -> None:
    first = evaluate_task(task(folder, "retrieval", main_score="mrr_at_1"), "x", embedding())
    assert first.metrics["metric"] == "mrr_at_1"
    assert first.metrics["test"] == first.scores["test"][0]["mrr_at_1"]
    with pytest.raises(ValidationError, match=r"main_score is 'mrr', but .* have mrr_at_"):
        task(folder, "retrieval", main_score="mrr")


def test_documents_with_the_id_of_the_query_can_be_ignored(tmp_path: Path) -> None:
    words = ["snow", "ice", "lake"]
    files = tmp_path / "retrieval"
    corpus = [{"doc_id": w, "title": "", "text": w} for w in words]
    write_rows(files / "corpus.parquet", corpus)
    write_rows(files / "queries.parquet", [{"query_id": "snow", "text": "snow snow ice"}])
    write_rows(files / "qrels_test.parquet", [{"query_id": "snow", "doc_id": "ice", "score": 1}])
    kept = main_score(tmp_path, "retrieval", main_score="ndcg_at_1")
    ignored = main_score(tmp_path, "retrieval", main_score="ndcg_at_1", identical_ids="ignore")
    assert (kept, ignored) == (0.0, 1.0)


class Constant:
    """Every text has one token, with the same state."""

    def __call__(self, role: Any, texts: Any) -> Any:
        rows = Ragged(np.ones((len(texts), WIDTH), np.float32), np.arange(len(texts) + 1))
        return [MemoryFeatures(SIZES, {"hidden/1": rows})]


@pytest.mark.few(3)
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.UndefinedMetricWarning", "ignore::RuntimeWarning"
)
@pytest.mark.parametrize("kind", KINDS)
def test_an_embedding_that_is_constant_has_the_score_of_a_guess_or_none(
    folder: Path, kind: str
) -> None:
    def score() -> float:
        return evaluate_task(task(folder, kind), kind, embedding(Constant())).metrics["test"]

    if kind in ("sts", "summarization"):
        with pytest.raises(InputError, match="is not a number: all similarities are equal"):
            score()
    elif kind in ("retrieval", "reranking"):
        assert 0 <= score() <= 1
    else:
        expected = {"classification": 1 / 3, "pair_classification": 16 / 24, "clustering": 0}
        assert score() == pytest.approx(expected[kind], abs=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_that_are_not_finite_are_an_error_that_names_the_text(
    folder: Path, kind: str, value: float
) -> None:
    states = WordStates()

    def broken(role: Any, texts: Any) -> Any:
        (member,) = states(role, texts)
        member.arrays["hidden/1"].data[3, 0] = value
        return [member]

    with pytest.raises(InputError, match=r"1 non-finite numbers, the first in text \d"):
        evaluate_task(task(folder, kind), "x", embedding(broken))


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_names_of_scores_are_those_that_mteb_computes(folder: Path, kind: str) -> None:
    config = task(folder, kind)
    (row,) = evaluate_task(config, kind, embedding()).scores["test"]
    found = {name for name, value in row.items() if isinstance(value, int | float)}
    assert found - {"main_score"} <= set(config.scores)
    # Average precision is that of two classes, and the rest of what is not a number here.
    missing = set(config.scores) - found
    assert all(name.startswith(("nauc_", "ap")) for name in missing), missing
    assert config.default_score in config.scores
