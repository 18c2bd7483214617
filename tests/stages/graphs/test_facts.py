"""Facts put before questions."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.graphs.fact_kinds.retrieved import RetrievedFacts
from permafrost.stages.graphs.facts import FACTS, Asked
from permafrost.storage.errors import InputError

TABLE = [
    "the sun is a star",
    "stars shine at night",
    "a plant needs light to grow",
    "plants are green",
    "the sun is a star",
    "it is",
]


def write_facts(folder: Path, rows: list[str] = TABLE, column: str = "sentence") -> str:
    pq.write_table(pa.table({column: rows}), folder / "facts.parquet")
    return str(folder / "facts.parquet")


def chosen(folder: Path, question: str, choice: str, **fields: Any) -> tuple[str, ...]:
    config = FACTS.validate({"kind": "retrieved", "path": write_facts(folder), **fields})
    known = Asked("Where is the sun?", "night", None)
    return config.choose([Asked(question, choice, None), known])[0]


def test_no_facts_and_the_questions_own() -> None:
    asked = [Asked("q", "c", "a fact"), Asked("q", "c", None)]
    assert FACTS.validate({"kind": "none"}).choose(asked) == [(), ()]
    gold = FACTS.validate({"kind": "gold", "column": "its_fact"})
    assert gold.choose(asked) == [("a fact",), ()]
    assert (gold.gold_column, gold.facts()["column"]) == ("its_fact", "its_fact")


@pytest.mark.parametrize("method", ["bm25", "tfidf"])
def test_the_facts_with_most_words_in_common_come_first(tmp_path: Path, method: str) -> None:
    found = chosen(tmp_path, "Why do planting and lights matter?", "growing", method=method)
    assert found[0] == "a plant needs light to grow"
    assert found[1:] == ("plants are green",), "each fact once, none without a word in common"
    assert chosen(tmp_path, "Zebras?", "the", method=method) == ()
    assert len(chosen(tmp_path, "plant", "star", method=method, top_k=1)) == 1


def test_facts_are_the_same_with_spaces_around_them(tmp_path: Path) -> None:
    rows = [" a cup is in a kitchen.\n", "a cup is in a kitchen.", "\ta cup is blue "]
    config = RetrievedFacts(path=write_facts(tmp_path, rows))
    found = config.choose([Asked("a cup in the kitchen?", "yes", None)])
    assert found == [("a cup is in a kitchen.", "a cup is blue")]


def test_facts_that_share_no_word_with_any_question_are_refused(tmp_path: Path) -> None:
    path = write_facts(tmp_path, ["die Sonne scheint immer", "Pflanzen brauchen Licht"])
    asked = [Asked("Why the sun?", choice, None) for choice in ("green", "night")]
    for query, whose in (("question", "question"), ("question_and_choice", "question or choice")):
        says = (
            rf"no fact of {path} \(2 facts, the first: 'die Sonne scheint immer'\) shares a word with any "
            rf"{whose} \(1 question, the first: 'Why the sun\?'\); give both in one language"
        )
        with pytest.raises(InputError, match=says):
            FACTS.validate({"kind": "retrieved", "path": path, "query": query}).choose(asked)
    assert RetrievedFacts(path=path).choose([]) == []


def test_with_the_question_alone_every_choice_has_the_same_facts(tmp_path: Path) -> None:
    config = RetrievedFacts(path=write_facts(tmp_path), query="question", top_k=1)
    asked = [Asked("green?", choice, None) for choice in ("sun", "night")]
    assert config.choose(asked) == [("plants are green",)] * 2
    both = RetrievedFacts(path=write_facts(tmp_path), top_k=1).choose(asked)
    assert both[0] == ("the sun is a star",), "equal scores are in the order of the table"


def test_bm25_is_okapis_formula(tmp_path: Path) -> None:
    rows = ["cat cat dog", "dog bird", "cat fish bird bird"]
    config = RetrievedFacts(path=write_facts(tmp_path, rows), k1=1.5, b=0.6, top_k=3)
    counts = {"cat": [2, 0, 1], "dog": [1, 1, 0], "bird": [0, 1, 2]}
    lengths = np.array([3, 2, 4])
    norm = 1.5 * (1 - 0.6 + 0.6 * lengths / lengths.mean())

    def score(query: str) -> np.ndarray:
        total = np.zeros(3)
        for word in query.split():
            tf = np.array(counts[word])
            rarity = np.log(1 + (3 - (tf > 0).sum() + 0.5) / ((tf > 0).sum() + 0.5))
            total += rarity * tf * 2.5 / (tf + norm)
        return total

    for query in ("cat dog", "bird", "cat bird dog", "dog bird"):
        wanted = [rows[i] for i in np.argsort(-score(query), kind="stable") if score(query)[i] > 0]
        assert config.choose([Asked(query, "", None)]) == [tuple(wanted)]


def test_facts_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no column 'fact'"):
        RetrievedFacts(path=write_facts(tmp_path, column="what")).choose([Asked("q", "c", None)])
    with pytest.raises(InputError, match="no stop word"):
        RetrievedFacts(path=write_facts(tmp_path, ["it is"])).choose([Asked("q", "c", None)])
    with pytest.raises(InputError, match="there is no file"):
        RetrievedFacts(path=str(tmp_path / "none.csv")).facts()
