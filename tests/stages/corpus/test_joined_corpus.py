"""Graded pairs that are joined with others of similar scores (HTP, figure 1)."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CORPUS_SOURCES, TaskSource
from permafrost.stages.corpus.sources.joined import JoinedCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.keys import canonical_json

TASK = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
GRADES = [i % 6 for i in range(60)]


@pytest.fixture
def file(tmp_path: Path) -> str:
    rows = {
        "a": [f"a{i}" for i in range(60)],
        "b": [f"b{i}" for i in range(60)],
        "score": [float(g) for g in GRADES],
    }
    pq.write_table(pa.table(rows), tmp_path / "test.parquet")
    return str(tmp_path / "test.parquet")


def config(file: str, **fields: Any) -> TaskSource:
    source = {"kind": "files", "files": {"test": file}, "task": TASK}
    return CORPUS_SOURCES.validate({"kind": "joined", "source": source, **fields})


def joined(corpus: Corpus) -> list[tuple[list[str], list[str], float]]:
    rows = corpus.split("test").to_pylist()
    texts = corpus.texts
    return [(texts[r["text"]].split(), texts[r["text_pair"]].split(), r["label"]) for r in rows]


def test_both_texts_are_of_the_same_pairs_and_the_grade_is_their_mean(file: str) -> None:
    rows = joined(config(file, n_pairs=4).build())
    assert len(rows) == 60
    for row, (first, second, grade) in enumerate(rows):
        numbers = [int(mark[1:]) for mark in first]
        assert numbers[0] == row
        assert numbers == [int(mark[1:]) for mark in second]
        assert len(set(numbers)) == 4
        grades = [GRADES[n] for n in numbers]
        assert grade == pytest.approx(sum(grades) / 4)
        # Five parts of 0 to 5: the highest score shares its part with the one below.
        assert len({min(g, 4) for g in grades}) == 1


def test_one_pair_is_the_source_and_more_add_to_fewer(file: str) -> None:
    one, two, eight = (joined(config(file, n_pairs=n).build()) for n in (1, 2, 8))
    assert [(a, b, g) for a, b, g in one] == [
        ([f"a{i}"], [f"b{i}"], g) for i, g in enumerate(GRADES)
    ]
    for few, many in zip(two, eight, strict=True):
        assert many[0][:2] == few[0]
    assert two != joined(config(file, n_pairs=2, seed=1).build())
    assert two == joined(config(file, n_pairs=2).build())


def test_facts_have_every_field(file: str) -> None:
    facts = config(file, n_pairs=2).facts()
    assert set(facts) == set(JoinedCorpus.model_fields)
    for change in ({"n_pairs": 3}, {"n_bins": 2}, {"seed": 1}):
        other = config(file, **{"n_pairs": 2, **change}).facts()
        assert canonical_json(other) != canonical_json(facts)


def test_what_cannot_be_joined_is_refused(file: str) -> None:
    with pytest.raises(
        InputError, match=r"only 10 of its 60 pairs .* 5 parts .* too few to join 11; ask"
    ):
        config(file, n_pairs=11).build()
    assert config(file, n_pairs=30, n_bins=1).build().splits == ("test",)
    source = {"kind": "files", "files": {"test": file}, "task": {"kind": "unlabelled", "text": "a"}}
    with pytest.raises(ValidationError, match="joined by their scores"):
        CORPUS_SOURCES.validate({"kind": "joined", "source": source, "n_pairs": 2})
    carved = {
        "kind": "files",
        "files": {"train": file},
        "task": TASK,
        "dev": {"kind": "from_train", "fraction": 0.5},
    }
    with pytest.raises(ValidationError, match="another one at every length"):
        CORPUS_SOURCES.validate({"kind": "joined", "source": carved, "n_pairs": 2})
