"""What each example adds to a score of mteb: by the libraries, on disk, and as what resampling takes."""

import json
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import pytrec_eval
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskPairClassification
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

from permafrost.stages.metrics.bootstrap import (
    BootstrapConfig,
    bootstrap_interval,
    paired_bootstrap,
)
from permafrost.stages.metrics.comparison import ScoredMethod, compare
from permafrost.stages.metrics.example_scores import (
    EXAMPLE_SCORES,
    ExampleScores,
    read_example_scores,
)
from permafrost.stages.metrics.resampling import resampled
from permafrost.stages.mteb_evaluation import evaluate_task, examples
from permafrost.stages.mteb_evaluation.tasks.hub import HubTask
from permafrost.stages.report.cells import Cell, read_results
from permafrost.stages.report.standing import standings
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import text_digest
from tests.stages.mteb_evaluation.small_tasks import task, write_task, write_tasks
from tests.stages.mteb_evaluation.test_mteb_scores import cosines, ranked
from tests.stages.mteb_evaluation.word_vectors import embedding

pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
]

BOOTSTRAP = BootstrapConfig(n_resamples=300)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


def evaluated(folder: Path, kind: str, **fields: str) -> tuple[ExampleScores, float]:
    result = evaluate_task(task(folder, kind, **fields), "a/b", embedding())
    assert result.examples is not None
    return result.examples, result.metrics["test"]


def test_pairs_have_their_cosine_and_grade(folder: Path) -> None:
    rows = task(folder, "sts").read().tables["test"]
    found, score = evaluated(folder, "sts")
    first, second = rows["sentence1"], rows["sentence2"]
    digests = [f"{text_digest(a)} {text_digest(b)}" for a, b in zip(first, second, strict=True)]
    assert list(found.names) == digests
    np.testing.assert_allclose(found.predictions, cosines(first, second), atol=1e-6)
    assert spearmanr(found.predictions, rows["score"]).statistic == pytest.approx(score, abs=1e-12)
    assert found.how == "spearman"


@pytest.mark.parametrize(("kind", "measure"), [("retrieval", "ndcg_cut_10"), ("reranking", "map")])
def test_queries_have_their_own_score(folder: Path, kind: str, measure: str) -> None:
    data = task(folder, kind).read()
    expected = pytrec_eval.RelevanceEvaluator(data.relevant, {"ndcg_cut.10", "map"}).evaluate(
        ranked(data)
    )
    found, score = evaluated(folder, kind)
    queries = [name.split()[0] for name in found.names]
    assert set(queries) == set(expected)
    wanted = [expected[query][measure] for query in queries]
    np.testing.assert_allclose(found.predictions, wanted, atol=1e-6)
    assert found.predictions.mean() == pytest.approx(score, abs=5.1e-6)  # mteb rounds to 5 decimals
    assert found.labels.tolist() == [
        sum(grade > 0 for grade in data.relevant[query].values()) for query in queries
    ]


@pytest.mark.parametrize("change", ["text", "judgement"])
def test_queries_of_the_same_id_that_ask_or_are_judged_otherwise_are_others(
    tmp_path: Path, change: str
) -> None:
    at = write_task(tmp_path, "retrieval")
    before, _ = evaluated(tmp_path, "retrieval")
    name = "queries" if change == "text" else "qrels_test"
    rows = pq.read_table(at / f"{name}.parquet").to_pylist()
    first = next(r for r in rows if change == "text" or r["score"] > 0)
    first |= (
        {"text": f"{first['text']} rain"} if change == "text" else {"score": first["score"] + 1}
    )
    pq.write_table(pa.Table.from_pylist(rows), at / f"{name}.parquet")
    after, _ = evaluated(tmp_path, "retrieval")
    assert [n.split()[0] for n in after.names] == [n.split()[0] for n in before.names]
    assert len(set(after.names) - set(before.names)) == 1


@pytest.mark.parametrize("kind", ["retrieval", "reranking"])
def test_queries_with_other_documents_to_find_are_others(tmp_path: Path, kind: str) -> None:
    at = write_task(tmp_path, kind)
    path = at / ("corpus.parquet" if kind == "retrieval" else "test.parquet")
    column = "text" if kind == "retrieval" else "document"
    before, _ = evaluated(tmp_path, kind)
    rows = pq.read_table(path).to_pylist()
    pq.write_table(pa.Table.from_pylist([{**r, column: f"{r[column]} rain"} for r in rows]), path)
    after, _ = evaluated(tmp_path, kind)
    assert not set(after.names) & set(before.names)
    assert [n.split()[0] for n in after.names] == [n.split()[0] for n in before.names]


def test_a_document_with_the_id_of_the_query_is_no_answer_if_mteb_ignores_it(
    tmp_path: Path,
) -> None:
    at = write_task(tmp_path, "retrieval")
    plain, _ = evaluated(tmp_path, "retrieval")
    query = plain.names[int(plain.predictions.argmax())].split()[0]
    queries = task(tmp_path, "retrieval").read().tables["queries"]
    text = queries["text"][queries["id"].index(query)]
    documents = pq.read_table(at / "corpus.parquet")
    (key,) = [name for name in documents.column_names if name.endswith("id")]
    twin = {name: [""] for name in documents.column_names} | {key: [query], "text": [text]}
    table = pa.concat_tables([documents, pa.table(twin).cast(documents.schema)])
    pq.write_table(table, at / "corpus.parquet")
    kept, _ = evaluated(tmp_path, "retrieval")
    ignored, score = evaluated(tmp_path, "retrieval", identical_ids="ignore")
    (place,) = [i for i, name in enumerate(kept.names) if name.split()[0] == query]
    assert kept.predictions[place] < ignored.predictions[place]
    assert ignored.predictions.mean() == pytest.approx(score, abs=5.1e-6)


def test_texts_have_the_share_of_experiments_that_answer_them_correctly(folder: Path) -> None:
    found, score = evaluated(folder, "classification")
    rows = task(folder, "classification").read().tables["test"]
    assert list(found.names) == [text_digest(text) for text in rows["text"]]
    tenths = 10 * found.predictions
    np.testing.assert_allclose(tenths, tenths.round(), atol=1e-9)
    assert found.predictions.std() > 0
    assert found.predictions.mean() == pytest.approx(score, abs=1e-9)


@pytest.mark.parametrize("metric", ["max_ap", "cosine_ap", "manhattan_ap"])
def test_matches_have_the_similarity_that_the_score_is_of(folder: Path, metric: str) -> None:
    rows = task(folder, "pair_classification").read().tables["test"]
    found, score = evaluated(folder, "pair_classification", main_score=metric)
    first, second = rows["sentence1"], rows["sentence2"]
    digests = [f"{text_digest(a)} {text_digest(b)}" for a, b in zip(first, second, strict=True)]
    assert list(found.names) == digests
    assert found.labels.tolist() == rows["labels"]
    assert found.how == "average_precision"
    if metric == "cosine_ap":
        np.testing.assert_allclose(found.predictions, cosines(first, second), atol=1e-6)
    expected = average_precision_score(found.labels, found.predictions)
    assert expected == pytest.approx(score, abs=5.1e-6)
    once = np.ones((len(digests), 1))
    (whole,) = resampled(found.how, found.labels, found.predictions[None], once)[0]
    assert whole == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("are_kept", [True, False])
def test_pairs_that_are_one_row_of_lists_are_counted_one_by_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, are_kept: bool
) -> None:
    asked = task(folder, "pair_classification", main_score="max_ap")
    one_by_one = evaluate_task(asked, "a/b", embedding())
    rows = asked.read().tables["test"]

    def load(self: Any, **_: Any) -> None:
        lists = Dataset.from_dict({name: [rows[name]] for name in rows})
        self.dataset = {"default": DatasetDict({"test": lists})}
        self.data_loaded = True

    monkeypatch.setattr(AbsTaskPairClassification, "load_data", load)
    if not are_kept:
        monkeypatch.setattr(examples, "example_scores", lambda *_: None)
    found = evaluate_task(HubTask(kind="mteb", name="TwitterURLCorpus"), "a/b", embedding())
    assert found.metrics["metric"] == "max_ap"
    assert found.metrics["n_test"] == one_by_one.metrics["n_test"] == 24
    assert found.metrics["test"] == one_by_one.metrics["test"]
    assert (found.examples is not None) == are_kept
    if found.examples is not None and one_by_one.examples is not None:
        assert found.examples.same_examples(one_by_one.examples)


def test_of_pairs_an_accuracy_has_no_examples(folder: Path) -> None:
    asked = task(folder, "pair_classification", main_score="max_accuracy")
    assert evaluate_task(asked, "a/b", embedding()).examples is None


@pytest.mark.parametrize("kind", ["clustering", "summarization"])
def test_other_kinds_have_none(folder: Path, tmp_path: Path, kind: str) -> None:
    result = evaluate_task(task(folder, kind), kind, embedding())
    assert result.examples is None
    result.save(tmp_path)
    assert not (tmp_path / EXAMPLE_SCORES).exists()
    assert read_example_scores(tmp_path) is None


def some_scores(shift: float, n: int = 80) -> ExampleScores:
    draw = np.random.default_rng(7)
    values = draw.uniform(0, 0.5, n) + shift + 0.05 * draw.standard_normal(n)
    return ExampleScores(tuple(f"q{i}" for i in range(n)), np.ones(n), values, "mean")


def test_scores_come_back_from_disk(tmp_path: Path) -> None:
    scores = some_scores(0.1)
    scores.save(tmp_path)
    found = read_example_scores(tmp_path)
    assert found is not None
    assert found.same_examples(scores)
    assert np.array_equal(found.predictions, scores.predictions)
    assert not found.same_examples(replace(scores, how="spearman"))
    assert not found.same_examples(replace(scores, labels=2 * scores.labels))


@pytest.mark.parametrize("damage", ["bytes", "metadata", "how"])
def test_a_damaged_file_is_not_read(tmp_path: Path, damage: str) -> None:
    some_scores(0.1).save(tmp_path)
    path = tmp_path / EXAMPLE_SCORES
    if damage == "bytes":
        path.write_bytes(path.read_bytes()[:-9])
    else:
        metadata = None if damage == "metadata" else {"score": "median"}
        pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    with pytest.raises(CorruptDataError, match=EXAMPLE_SCORES):
        read_example_scores(tmp_path)


def cell(folder: Path, method: str, scores: ExampleScores) -> Cell:
    at = folder / method
    at.mkdir()
    scores.save(at)
    test = round(float(scores.predictions.mean()), 5)
    content = {"metric": "ndcg_at_10", "dev": None, "test": test, "n_dev": 0, "n_test": len(scores)}
    (at / "metrics.json").write_text(json.dumps({**content, "n_parameters": 0}))
    return Cell(method, "search", 0, "method", at, None, f"evaluate/{method}")


def test_methods_are_compared_over_the_examples(tmp_path: Path) -> None:
    good, near, bad = some_scores(0.3), some_scores(0.3), some_scores(0.1)
    near.predictions[:2] = near.predictions[1::-1]
    near.predictions[0] -= 1e-3
    named = {"good": good, "near": near, "bad": bad}
    results = read_results([cell(tmp_path, name, scores) for name, scores in named.items()])
    (standing,) = standings(results, [("search", "ndcg_at_10")], BOOTSTRAP)
    expected = paired_bootstrap(
        "mean", good.labels, bad.predictions[None], good.predictions[None], n_resamples=300
    )
    found = standing.against("bad")
    assert found is not None
    assert astuple(found.difference) == pytest.approx(astuple(expected), abs=1e-12)
    assert standing.tied(BOOTSTRAP.alpha) == {"near"}
    interval = bootstrap_interval("mean", bad.labels, bad.predictions, n_resamples=300)
    assert astuple(standing.entries["bad"]) == pytest.approx(astuple(interval), abs=1e-12)
    drawn = np.random.default_rng(1).choice(bad.predictions, (4000, 80)).mean(axis=1)
    low, high = np.quantile(drawn, (0.025, 0.975))
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=0.01)


def test_two_runs_are_compared_over_the_examples() -> None:
    before, after = (
        ScoredMethod(
            "m", "search", "ndcg_at_10", "method",
            (round(float(scores.predictions.mean()), 5),), (scores,),
        )
        for scores in (some_scores(0.1), some_scores(0.2))
    )  # fmt: skip
    (change,) = compare([before], [after], BOOTSTRAP).changes
    assert (change.basis, change.n_examples, change.verdict) == ("examples", 80, "better")
    other = replace(after, answers=(replace(some_scores(0.2), names=("x",) * 80),))
    (unpaired,) = compare([before], [other], BOOTSTRAP).changes
    assert (unpaired.basis, unpaired.n_of_each) == ("other examples", (80, 80))
