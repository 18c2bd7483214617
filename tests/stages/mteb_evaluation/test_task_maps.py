"""Maps of what a task had embedded: which texts, whose vectors, and what they are called."""

from pathlib import Path

import mteb
import numpy as np
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from mteb.abstasks import AbsTaskRegression

from permafrost.stages.metrics.vector_map import MAP_TEXTS, principal_components, read_vector_map
from permafrost.stages.mteb_evaluation import evaluate_task
from permafrost.stages.mteb_evaluation.maps import task_map
from permafrost.storage.keys import text_digest
from tests.diagonal import diagonal
from tests.stages.mteb_evaluation.small_tasks import KINDS, task, write_rows, write_task
from tests.stages.mteb_evaluation.word_vectors import WordStates, embedding, mean_of_words

pytestmark = [
    pytest.mark.deep,
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning"),
    pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning"),
]

LABELLED = {"classification": ("text", "label"), "clustering": ("sentences", "labels")}


@pytest.mark.parametrize("kind", LABELLED)
def test_texts_of_test_stand_where_their_vectors_are(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path, kind)
    evaluate_task(task(tmp_path, kind), kind, embedding()).save(tmp_path)
    found = read_vector_map(tmp_path)
    assert found is not None
    assert found.names is not None
    data = task(tmp_path, kind).read().tables["test"]
    texts, labels = (data[name] for name in LABELLED[kind])
    unique = [i for i, text in enumerate(texts) if text not in texts[:i]]
    assert found.texts.tolist() == unique
    assert list(found.names.texts) == [texts[i] for i in unique]
    shown = [found.names.classes[c] for c in found.classes]
    assert shown == [str(labels[i]) for i in unique]
    assert len(set(shown)) == 3
    vectors = mean_of_words([texts[i] for i in unique])
    points, shares = principal_components(vectors)
    np.testing.assert_allclose(found.points, points, atol=1e-5)
    assert found.shares == pytest.approx(shares)


@pytest.mark.parametrize("n_embedded", [60, 700])
def test_only_texts_that_the_task_had_embedded_are_shown_and_none_twice(
    tmp_path: Path, n_embedded: int
) -> None:
    rows = [{"text": f"snow ice lake {i}", "label": i % 2} for i in range(MAP_TEXTS + 100)]
    write_rows(tmp_path / "clustering" / "test.parquet", [*rows, *rows])
    config, states = task(tmp_path, "clustering", max_documents=n_embedded), WordStates()
    evaluate_task(config, "few", embedding(states)).save(tmp_path)
    found = read_vector_map(tmp_path)
    assert found is not None
    assert found.names is not None
    # What was embedded, each text once, and then those of the map again.
    n_shown = len(found.names.texts)
    embedded, again = states.asked["text"][:-n_shown], states.asked["text"][-n_shown:]
    assert n_shown == min(MAP_TEXTS, len(embedded))
    assert list(found.names.texts) == again
    assert len(set(again)) == n_shown
    assert set(again) <= set(embedded)
    assert len(embedded) < len(rows)


def test_titles_are_beginnings_on_one_line(tmp_path: Path) -> None:
    path = write_task(tmp_path, "classification") / "test.parquet"
    rows = [
        {**row, "text": f"{row['text']}\n{'snow ' * 60}"} for row in pq.read_table(path).to_pylist()
    ]
    write_rows(path, rows)
    evaluate_task(task(tmp_path, "classification"), "long", embedding()).save(tmp_path)
    found = read_vector_map(tmp_path)
    assert found is not None
    assert found.names is not None
    assert {len(title) for title in found.names.texts} == {200}
    assert not any("\n" in title for title in found.names.texts)


@pytest.mark.few(1)
@diagonal({"names": [("cold", "warm", "mild"), (4, 7, 2), (0, 2, 1)], "n_in_test": [2, 3]})
def test_classes_may_have_any_names_and_test_only_two_of_them(
    tmp_path: Path, names: tuple[str | int, ...], n_in_test: int
) -> None:
    folder = write_task(tmp_path, "classification")
    tables = {
        split: pq.read_table(folder / f"{split}.parquet").to_pylist() for split in ("train", "test")
    }
    tables["test"] = [row for row in tables["test"] if row["label"] < n_in_test]
    write_rows(folder / "test.parquet", tables["test"])
    plain = evaluate_task(task(tmp_path, "classification"), "numbers", embedding())
    for split, rows in tables.items():
        named = [{**row, "label": names[row["label"]]} for row in rows]
        write_rows(folder / f"{split}.parquet", named)
    found = evaluate_task(task(tmp_path, "classification"), "names", embedding())
    assert found.metrics["test"] == pytest.approx(plain.metrics["test"], abs=0.02)
    found.save(tmp_path)
    shown = read_vector_map(tmp_path)
    assert shown is not None
    assert shown.names is not None
    expected = {row["text"]: str(names[row["label"]]) for row in tables["test"]}
    of_text = zip(shown.names.texts, shown.classes, strict=True)
    assert {text: shown.names.classes[c] for text, c in of_text} == expected


def test_a_number_is_no_class() -> None:
    class Years(AbsTaskRegression):
        metadata = mteb.get_task("RuSciBenchYearPublRegression").metadata

    years = Years()
    rows = {years.input_column_name: ["snow", "ice"], years.label_column_name: [1999, 2003]}
    years.dataset = DatasetDict({years.eval_splits[0]: Dataset.from_dict(rows)})
    asked = {text_digest(text) for text in ("snow", "ice")}
    assert task_map(years, embedding(), asked) is None


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LABELLED])
def test_other_kinds_have_no_map(tmp_path: Path, kind: str) -> None:
    write_task(tmp_path, kind)
    evaluate_task(task(tmp_path, kind), kind, embedding()).save(tmp_path)
    assert read_vector_map(tmp_path) is None
