"""The texts that are extracted ahead of an evaluation are those that mteb asks for."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset

from permafrost.stages.mteb_evaluation import evaluate_task
from permafrost.stages.mteb_evaluation.build import build_task
from permafrost.stages.mteb_evaluation.texts import drawn_rows
from permafrost.storage.keys import text_digest
from tests.stages.mteb_evaluation.small_tasks import KINDS, task, write_rows, write_tasks
from tests.stages.mteb_evaluation.word_vectors import WordStates, embedding

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("kind", "fields"),
    [*((kind, {}) for kind in KINDS), ("clustering", {"max_documents": 20})],
)
def test_a_task_asks_for_exactly_the_texts_of_its_corpora(
    folder: Path, kind: str, fields: dict[str, Any]
) -> None:
    config, states = task(folder, kind, **fields), WordStates()
    evaluate_task(config, kind, embedding(states))
    assert set(states.asked) == set(config.roles)
    for role in config.roles:
        corpus = config.texts_in(role)
        assert set(corpus.texts) == set(states.asked[role])
        assert len(set(corpus.texts)) == len(corpus.texts)
        assert corpus.digests == tuple(map(text_digest, corpus.texts))
        assert (corpus.task, corpus.splits) == ("unlabelled", (role,))


def test_title_and_text_are_joined_as_mteb_joins_them(folder: Path) -> None:
    config = task(folder, "retrieval")
    corpus = config.read().tables["corpus"]
    texts = config.texts_in("document").texts
    assert f"{corpus['title'][1]} {corpus['text'][1]}" in texts
    assert corpus["title"][0] == ""
    assert corpus["text"][0] in texts


def test_without_a_title_the_document_is_its_text(folder: Path) -> None:
    config = task(folder, "retrieval", title=None)
    assert set(config.texts_in("document").texts) == set(config.read().tables["corpus"]["text"])


@pytest.mark.parametrize(("per_label", "n_draws"), [(2, 1), (8, 10), (100, 3)])
def test_training_rows_are_drawn_as_mteb_draws_them(
    folder: Path, per_label: int, n_draws: int
) -> None:
    config = task(folder, "classification", samples_per_label=per_label, n_experiments=n_draws)
    built: Any = build_task(config, "x", config.read())
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 200).tolist()
    rows = Dataset.from_dict({"text": [str(i) for i in range(200)], "label": labels})
    drawn, order = set[int](), None
    for i in range(n_draws):
        _, order, chosen = built._undersample_data(rows, i, order)
        drawn.update(chosen)
    assert drawn_rows(labels, per_label, n_draws) == sorted(drawn)


def test_blank_documents_are_left_out_of_the_corpus(tmp_path: Path, folder: Path) -> None:
    rows = [{"doc_id": f"d{i}", "title": "", "text": t} for i, t in enumerate(("snow", " ", ""))]
    write_rows(tmp_path / "retrieval" / "corpus.parquet", rows)
    write_rows(tmp_path / "retrieval" / "queries.parquet", [{"query_id": "q", "text": "ice"}])
    qrels = [{"query_id": "q", "doc_id": "d0", "score": 1}]
    write_rows(tmp_path / "retrieval" / "qrels_test.parquet", qrels)
    assert task(tmp_path, "retrieval").texts_in("document").texts == ("snow",)
