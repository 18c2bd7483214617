"""What is recorded beside the main score, against scikit-learn, scipy and pytrec_eval; ties; equal ids."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from scipy.stats import pearsonr
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import (
    adjusted_mutual_info_score,
    f1_score,
    precision_score,
    recall_score,
    v_measure_score,
)

from permafrost.stages.mteb_evaluation import evaluate_task
from tests.stages.mteb_evaluation.small_tasks import task, write_rows, write_tasks
from tests.stages.mteb_evaluation.test_mteb_scores import Constant, cosines, ranked
from tests.stages.mteb_evaluation.word_vectors import embedding, mean_of_words

pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

CUTS = (1, 3, 5, 10, 20, 100, 1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def scores(folder: Path, kind: str, states: Any = None, **fields: Any) -> dict[str, Any]:
    """Everything that mteb measured."""
    found = evaluate_task(task(folder, kind, **fields), kind, embedding(states))
    return found.scores["test"][0]


def test_f1_precision_and_recall_of_classes(folder: Path) -> None:
    tables = task(folder, "classification").read().tables
    train, test = (mean_of_words(tables[s]["text"]) for s in ("train", "test"))
    labels, wanted = np.array(tables["train"]["label"]), tables["test"]["label"]
    order = list(range(len(labels)))
    expected: dict[str, list[float]] = {}
    for _ in range(10):
        np.random.RandomState(42).shuffle(order)
        drawn = [i for at, i in enumerate(order) if (labels[order[:at]] == labels[i]).sum() < 8]
        model = LogisticRegression(max_iter=100, random_state=42).fit(train[drawn], labels[drawn])
        answers = model.predict(test)
        for name, measure in (
            ("f1", f1_score),
            ("precision", precision_score),
            ("recall", recall_score),
        ):
            for suffix, average in (("", "macro"), ("_weighted", "weighted")):
                value = measure(wanted, answers, average=average)
                expected.setdefault(f"{name}{suffix}", []).append(float(value))
    found = scores(folder, "classification")
    assert len(expected) == 6
    for name, values in expected.items():
        assert found[name] == pytest.approx(np.mean(values), abs=1e-9), name


def test_pearson_of_graded_pairs(folder: Path) -> None:
    rows = task(folder, "sts").read().tables["test"]
    expected = pearsonr(cosines(rows["sentence1"], rows["sentence2"]), rows["score"]).statistic
    assert scores(folder, "sts")["cosine_pearson"] == pytest.approx(expected, abs=1e-6)


def test_vectors_that_hold_the_classes_are_clustered_without_a_mistake(tmp_path: Path) -> None:
    words = ["snow ice", "fish swim", "lake river"]
    rows = [{"text": words[i % 3], "label": f"class {i % 3}"} for i in range(30)]
    write_rows(tmp_path / "clustering" / "test.parquet", rows)
    found = scores(tmp_path, "clustering")
    assert found["v_measure"] == pytest.approx(1, abs=1e-9)
    assert found["ami"] == pytest.approx(1, abs=1e-9)
    # The same as scikit-learn says of a clustering under other names, and not of a random one.
    truth, renamed = [i % 3 for i in range(30)], [(i + 1) % 3 for i in range(30)]
    assert v_measure_score(truth, renamed) == pytest.approx(1)
    assert adjusted_mutual_info_score(truth, [i // 10 for i in range(30)]) < 0.1


def judged(data: Any, run: dict[str, dict[str, float]]) -> dict[str, float]:
    """Means of pytrec_eval's measures under mteb's names."""
    names = {"ndcg_cut": "ndcg_at", "map_cut": "map_at", "recall": "recall_at", "P": "precision_at"}
    cuts = ",".join(map(str, CUTS))
    evaluator = pytrec_eval.RelevanceEvaluator(data.relevant, {f"{n}.{cuts}" for n in names})
    by_query = evaluator.evaluate(run)
    return {
        f"{mine}_{k}": float(np.mean([q[f"{theirs}_{k}"] for q in by_query.values()]))
        for theirs, mine in names.items()
        for k in CUTS
    }


@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_every_measure_of_a_search_is_that_of_pytrec_eval(folder: Path, kind: str) -> None:
    found = scores(folder, kind)
    expected = judged(data := task(folder, kind).read(), run := ranked(data))
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, abs=1e-5), name
    reciprocal = pytrec_eval.RelevanceEvaluator(data.relevant, {"recip_rank"}).evaluate(run)
    mean = np.mean([q["recip_rank"] for q in reciprocal.values()])
    assert found["mrr_at_1000"] == pytest.approx(mean, abs=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_documents_that_are_all_equally_near_are_ordered_as_pytrec_eval_orders_them(
    folder: Path, kind: str
) -> None:
    found, data = scores(folder, kind, Constant()), task(folder, kind).read()
    tied = {query: dict.fromkeys(run, 1.0) for query, run in ranked(data).items()}
    # By id, the last one first.
    one = {"q": {"a": 0, "b": 1}}
    first = pytrec_eval.RelevanceEvaluator(one, {"P.1"}).evaluate({"q": {"a": 1.0, "b": 1.0}})
    assert first["q"]["P_1"] == 1
    for name, value in judged(data, tied).items():
        assert found[name] == pytest.approx(value, abs=1e-5), name


def test_documents_of_equal_text_are_tied(tmp_path: Path) -> None:
    texts = {"a": "snow ice", "b": "snow ice", "c": "snow ice", "d": "fish", "e": "lake"}
    corpus = [{"doc_id": d, "title": "", "text": text} for d, text in texts.items()]
    write_rows(tmp_path / "retrieval" / "corpus.parquet", corpus)
    queries = [{"query_id": f"q{d}", "text": "snow ice fish"} for d in "abc"]
    write_rows(tmp_path / "retrieval" / "queries.parquet", queries)
    qrels = [{"query_id": f"q{d}", "doc_id": d, "score": 1} for d in "abc"]
    write_rows(tmp_path / "retrieval" / "qrels_test.parquet", qrels)
    found = scores(tmp_path, "retrieval")
    # c, b, a: a reciprocal rank of 1/3, 1/2 and 1.
    assert found["map_at_10"] == pytest.approx((1 / 3 + 1 / 2 + 1) / 3, abs=1e-5)
    assert found["precision_at_1"] == pytest.approx(1 / 3, abs=1e-5)


def test_ignored_equal_ids_are_left_out_of_every_measure(tmp_path: Path) -> None:
    words = ["snow", "ice", "lake", "fish", "river", "cold"]
    corpus = [
        {"doc_id": w, "title": "", "text": f"{w} {words[i - 1]}"} for i, w in enumerate(words)
    ]
    queries = [{"query_id": w, "text": w} for w in words]
    qrels = [{"query_id": w, "doc_id": words[i - 2], "score": 1} for i, w in enumerate(words)]
    for name, rows in (("corpus", corpus), ("queries", queries), ("qrels_test", qrels)):
        write_rows(tmp_path / "retrieval" / f"{name}.parquet", rows)
    data = task(tmp_path, "retrieval").read()
    whole = ranked(data)
    without = {q: {d: s for d, s in run.items() if d != q} for q, run in whole.items()}
    for identical_ids, run in (("keep", whole), ("ignore", without)):
        found = scores(tmp_path, "retrieval", identical_ids=identical_ids)
        for name, value in judged(data, run).items():
            assert found[name] == pytest.approx(value, abs=1e-5), (identical_ids, name)
    assert judged(data, whole) != judged(data, without)
