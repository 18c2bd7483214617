"""A test split taken out of train: its size, its classes, and that no text is on both sides."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.storage.errors import InputError

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
DEV = {"kind": "from_train", "fraction": 0.2}


def config(path: Path, kind: str, test: dict[str, Any], **fields: Any) -> CorpusConfig:
    given = {"kind": "files", "files": {"train": str(path)}, "task": {"kind": kind}, "test": test}
    return ADAPTER.validate_python({**given, **fields})


def parquet(folder: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.table({n: [row[n] for row in rows] for n in rows[0]}), folder / "all.parquet")
    return folder / "all.parquet"


def carved(
    folder: Path, rows: list[dict[str, Any]], kind: str, fraction: float = 0.2, **fields: Any
) -> Corpus:
    path = parquet(folder, rows)
    test = {"kind": "from_train", "fraction": fraction, "seed": fields.pop("seed", 0)}
    return config(path, kind, test, **fields).build()


def texts(corpus: Corpus, split: str) -> set[str]:
    rows = corpus.split(split)
    sides = [rows.column(c).drop_null().to_pylist() for c in ("text", "text_pair")]
    return {corpus.texts[i] for side in sides for i in side}


def counts(corpus: Corpus, split: str) -> Counter[str]:
    return Counter(
        corpus.label_names[int(c)] for c in corpus.split(split).column("label").to_pylist()
    )


def test_every_class_gives_its_share_and_dev_is_taken_from_the_rest(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": "abbccccccc"[i % 10]} for i in range(100)]
    corpus = carved(tmp_path, rows, "classification", dev=DEV)
    assert counts(corpus, "test") == {"a": 2, "b": 4, "c": 14}
    assert corpus.split("dev").num_rows == 16  # of the 80 that are left
    assert corpus.split("train").num_rows == 64
    splits = [texts(corpus, split) for split in ("train", "dev", "test")]
    assert sum(map(len, splits)) == len(set.union(*splits)) == 100


def test_the_choice_depends_on_seed_and_texts_but_not_on_order(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": i % 3} for i in range(60)]
    once = texts(carved(tmp_path, rows, "classification"), "test")
    assert len(once) == 12
    assert texts(carved(tmp_path, rows[::-1], "classification"), "test") == once
    assert texts(carved(tmp_path, rows, "classification", seed=1), "test") != once


def test_equal_texts_stay_on_one_side(tmp_path: Path) -> None:
    rng = random.Random(0)
    rows = [{"text": f"t{rng.randrange(40)}", "label": rng.randrange(2)} for _ in range(200)]
    corpus = carved(tmp_path, rows, "classification", dev=DEV)
    assert not texts(corpus, "test") & (texts(corpus, "train") | texts(corpus, "dev"))
    assert 30 <= corpus.split("test").num_rows <= 40


@pytest.mark.parametrize("kind", ["pair_classification", "similarity", "unlabelled"])
def test_pairs_that_share_a_text_stay_on_one_side(tmp_path: Path, kind: str) -> None:
    rng = random.Random(1)
    rows: list[dict[str, Any]] = [
        {"text": f"a{i // 3}", "text_pair": f"b{rng.randrange(300)}", "label": i % 2}
        for i in range(60)
    ]
    task: dict[str, Any] = {"kind": kind, "text_pair": "text_pair"}
    corpus = carved(tmp_path, rows, kind, task=task, dev=DEV)
    assert texts(corpus, "test")
    assert not texts(corpus, "test") & (texts(corpus, "train") | texts(corpus, "dev"))


def test_a_group_larger_than_the_share_stays_in_train(tmp_path: Path) -> None:
    joined = [{"text": "hub", "text_pair": f"j{i}", "label": i % 5} for i in range(50)]
    alone = [{"text": f"a{i}", "text_pair": f"b{i}", "label": i % 5} for i in range(50)]
    corpus = carved(tmp_path, joined + alone, "similarity")
    assert 10 <= corpus.split("test").num_rows <= 20
    assert "hub" in texts(corpus, "train") - texts(corpus, "test")


def test_graded_pairs_are_taken_from_every_part_of_the_scale(tmp_path: Path) -> None:
    rows = [{"text": f"a{i}", "text_pair": f"b{i}", "label": i / 20} for i in range(100)]
    grades = carved(tmp_path, rows, "similarity").split("test").column("label").to_pylist()
    assert Counter(int(g * 2) for g in grades) == dict.fromkeys(range(10), 2)


def test_a_class_with_one_text_stays_in_train(tmp_path: Path) -> None:
    rows = [{"text": f"t{i}", "label": i % 2} for i in range(20)]
    rows += [{"text": "rare", "label": 2}] * 3
    for seed in range(5):
        dev = {"kind": "from_train", "fraction": 0.5, "seed": seed}
        corpus = carved(tmp_path, rows, "classification", 0.5, seed=seed, dev=dev)
        assert counts(corpus, "train")["2"] == 3
        assert set(counts(corpus, "train")) == {"0", "1", "2"}
        assert set(counts(corpus, "test")) == {"0", "1"}


def test_classes_of_one_and_two_texts(tmp_path: Path) -> None:
    alone = [{"text": f"t{i}", "label": i} for i in range(50)]
    two_of_one = [*alone, {"text": "again", "label": 0}]
    for many_in_one in (two_of_one, [{"text": f"u{i}", "label": 0} for i in range(4)] + alone):
        with pytest.raises(InputError, match=r"leaves [12] of 1\d for test: 49 of the 50 classes"):
            carved(tmp_path, many_in_one, "classification", 0.2)
    two_of_most = alone + [{"text": f"u{i}", "label": i} for i in range(30)]
    corpus = carved(tmp_path, two_of_most, "classification", 0.2)
    assert sorted(counts(corpus, "test").values()) == [1] * 16
    assert set(counts(corpus, "train")) == {str(i) for i in range(50)}


def test_queries_stay_on_one_side_and_documents_need_not(tmp_path: Path) -> None:
    rows = [{"text": f"q{i // 2}", "text_pair": f"d{i % 4}"} for i in range(40)]
    path = parquet(tmp_path, rows)
    task = {"kind": "unlabelled", "text_pair": "text_pair"}
    test = {"kind": "from_train_queries", "fraction": 0.25}
    corpus = config(path, "unlabelled", test, task=task).build()
    queries = {
        split: {corpus.texts[i] for i in corpus.split(split).column("text").to_pylist()}
        for split in ("train", "test")
    }
    assert (len(queries["train"]), len(queries["test"])) == (15, 5)
    assert not queries["train"] & queries["test"]


def test_retrieval_and_reranking_hold_out_queries(tmp_path: Path) -> None:
    rows = [
        {"query_id": i // 2, "query": f"q{i // 2}", "document": f"d{i}", "label": i % 2}
        for i in range(40)
    ]
    path = parquet(tmp_path, rows)
    held = {"kind": "from_train_queries", "fraction": 0.2}
    files = {"train": str(path)}
    given = {"kind": "reranking", "files": files, "test": held, "dev": held}
    corpus = ADAPTER.validate_python(given).build()
    assert [corpus.split(s).num_rows for s in ("test", "dev", "train")] == [4, 3, 13]


def test_a_test_split_that_would_be_empty_is_refused(tmp_path: Path) -> None:
    rows = [{"text": "same", "text_pair": f"b{i}", "label": i} for i in range(10)]
    with pytest.raises(
        InputError, match=r"0.2 of 10 training examples leaves test empty.* 1 group"
    ):
        carved(tmp_path, rows, "similarity")
    few = [{"text": f"t{i}", "label": i} for i in range(3)]
    one_each = (
        r"of 3 training .* 0 of 1 for test: 3 of the 3 classes have one text.* is the column of the"
    )
    with pytest.raises(InputError, match=one_each):
        carved(tmp_path, few, "classification")
    twice = [{"text": f"t{i // 2}", "label": i // 2} for i in range(8)]
    with pytest.raises(InputError, match="each is the last one of its class"):
        config(
            parquet(tmp_path, twice),
            "classification",
            {"kind": "given"},
            dev=DEV | {"fraction": 0.5},
        ).build()


def test_a_test_split_is_given_or_carved(tmp_path: Path) -> None:
    files = {"train": "a.csv", "test": "b.csv"}
    test = {"kind": "from_train", "fraction": 0.2}
    says = (
        r"test of kind 'from_train' needs a split 'train' and no split 'test', but .* train, test"
    )
    with pytest.raises(ValidationError, match=says):
        config(tmp_path, "classification", test, files=files)
    with pytest.raises(ValidationError, match=says.replace("train, test", "dev")):
        config(tmp_path, "classification", test, files={"dev": "a.csv"})


def test_the_key_holds_how_test_is_taken(tmp_path: Path) -> None:
    path = parquet(tmp_path, [{"text": "a", "label": 0}])
    tests = [{"kind": "given"}, *({"kind": "from_train", "fraction": f} for f in (0.1, 0.2))]
    facts = [config(path, "classification", t).facts() for t in tests]
    assert facts[0] != facts[1] != facts[2]


def test_a_class_that_only_stands_beside_others_stays_in_train(tmp_path: Path) -> None:
    """The only pair of class c shares its first text with two of class a, so that the three move together."""
    rows = [{"text": f"p{i}", "text_pair": f"q{i}", "label": "ab"[i % 2]} for i in range(40)]
    rows += [{"text": "x", "text_pair": f"y{i}", "label": "aac"[i]} for i in range(3)]
    for seed in range(20):
        corpus = carved(tmp_path, rows, "pair_classification", 0.3, seed=seed)
        assert counts(corpus, "train")["c"] == 1, seed
        assert counts(corpus, "test")["c"] == 0, seed
