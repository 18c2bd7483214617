"""Pairs among other sentences: labels, lengths, what is shared, and what the draw depends on."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.corpus.sources.concatenated import ConcatenatedCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.keys import canonical_json

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
N_PAIRS = 20
TASK = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}


def pairs(split: str) -> list[tuple[str, str, float]]:
    """Sentences of three to five words, each with a mark that no other has; some occur in two pairs."""
    found: list[tuple[str, str, float]] = []
    for i in range(N_PAIRS):
        first = f"<{split}{i}a> " + " ".join(["x"] * (2 + i % 3))
        second = f"<{split}{i // 2}b> " + " ".join(["y"] * (2 + i // 2 % 3))
        found.append((first, second, i / 4))
    return found


def write(path: Path, rows: list[tuple[str, str, float]]) -> Path:
    columns = {
        name: pa.array(column)
        for name, column in zip(("a", "b", "score"), zip(*rows, strict=True), strict=True)
    }
    pq.write_table(pa.table(columns), path)
    return path


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    return {s: str(write(tmp_path / f"{s}.parquet", pairs(s))) for s in ("dev", "test")}


def config(files: dict[str, str], **fields: Any) -> CorpusConfig:
    source = {"kind": "files", "files": files, "task": TASK}
    return ADAPTER.validate_python({"kind": "concatenated", "source": source, **fields})


def texts_of(corpus: Corpus, split: str) -> list[tuple[str, str]]:
    rows = corpus.split(split).to_pylist()
    return [(corpus.texts[r["text"]], corpus.texts[r["text_pair"]]) for r in rows]


def marks(text: str) -> list[str]:
    return [word for word in text.split() if word.startswith("<")]


def test_labels_and_order_stay_and_each_text_holds_its_own_whole(files: dict[str, str]) -> None:
    built = config(files, n_sentences=4)
    corpus = built.build()
    assert corpus.task == built.task_kind == "similarity"
    assert corpus.splits == ("dev", "test")
    for split in corpus.splits:
        original = pairs(split)
        assert corpus.split(split).column("label").to_pylist() == [p[2] for p in original]
        for padded, (first, second, _) in zip(texts_of(corpus, split), original, strict=True):
            for text, own in zip(padded, (first, second), strict=True):
                assert f" {own} " in f" {text} "


def test_others_are_of_the_split_each_once_and_none_is_of_the_pair(files: dict[str, str]) -> None:
    corpus = config(files, n_sentences=4).build()
    for split in corpus.splits:
        pool = {m for a, b, _ in pairs(split) for m in (*marks(a), *marks(b))}
        for padded, (first, second, _) in zip(texts_of(corpus, split), pairs(split), strict=True):
            own = {*marks(first), *marks(second)}
            others = [m for text in padded for m in marks(text)]
            counts = Counter(others)
            assert set(others) <= pool
            assert len(others) == 2 * 5
            # Both texts' marks once, and eight different others: the sides have none in common.
            assert max(counts.values()) == 1
            assert own <= set(others)


def test_shared_sentences_stand_around_both_in_the_same_order(files: dict[str, str]) -> None:
    corpus = config(files, n_sentences=4, distractors="shared").build()
    places: Counter[int] = Counter()
    for padded, (first, second, _) in zip(texts_of(corpus, "test"), pairs("test"), strict=True):
        left, right = (text.split(own) for text, own in zip(padded, (first, second), strict=True))
        assert left == right
        places[len(marks(left[0]))] += 1
    assert len(places) > 2, "places differ between pairs"


@pytest.mark.parametrize("distractors", ["own", "shared"])
def test_texts_reach_the_number_of_words_and_no_sentence_more(
    files: dict[str, str], distractors: str
) -> None:
    corpus = config(files, n_words=24, distractors=distractors).build()
    for padded in texts_of(corpus, "test"):
        lengths = [len(text.split()) for text in padded]
        shorter = min(lengths)
        assert shorter >= 24
        # The last sentence added has at most five words; a shared list is as long as the shorter text needs.
        assert shorter < 24 + 5
        assert max(lengths) < 24 + 5 if distractors == "own" else max(lengths) - shorter <= 2


def test_short_targets_leave_the_pairs_as_they_are(files: dict[str, str], tmp_path: Path) -> None:
    plain = ADAPTER.validate_python({"kind": "files", "files": files, "task": TASK}).build()
    for fields in ({"n_sentences": 0}, {"n_words": 1}):
        assert config(files, **fields).build() == plain


@pytest.mark.parametrize(("place", "at"), [("first", 0), ("last", 4)])
def test_the_place_can_be_fixed(files: dict[str, str], place: str, at: int) -> None:
    corpus = config(files, n_sentences=4, place=place).build()
    for padded, (first, second, _) in zip(texts_of(corpus, "dev"), pairs("dev"), strict=True):
        for text, own in zip(padded, (first, second), strict=True):
            assert marks(text).index(*marks(own)) == at


def test_random_places_are_uniform(files: dict[str, str]) -> None:
    """Over 40 seeds 1,600 texts with five places each: 320 each, a standard deviation of 16."""
    places: Counter[int] = Counter()
    for seed in range(40):
        corpus = config({"test": files["test"]}, n_sentences=4, seed=seed).build()
        for padded, original in zip(texts_of(corpus, "test"), pairs("test"), strict=True):
            for text, own in zip(padded, original[:2], strict=True):
                places[marks(text).index(*marks(own))] += 1
    assert sum(places.values()) == 40 * N_PAIRS * 2
    assert all(abs(places[i] - 320) < 4 * 16 for i in range(5))


def test_the_order_of_rows_plays_no_role_and_the_seed_does(
    files: dict[str, str], tmp_path: Path
) -> None:
    base = texts_of(config(files, n_sentences=3).build(), "test")
    turned = {"test": str(write(tmp_path / "turned.parquet", pairs("test")[::-1]))}
    assert texts_of(config(turned, n_sentences=3).build(), "test") == base[::-1]
    assert texts_of(config(files, n_sentences=3).build(), "test") == base
    assert texts_of(config(files, n_sentences=3, seed=1).build(), "test") != base


def test_a_dataset_and_pairs_with_classes_work_alike(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    first, second, _ = map(list, zip(*pairs("test"), strict=True))
    classes = [i % 2 for i in range(N_PAIRS)]
    Dataset.from_dict({"a": first, "b": second, "score": classes}).save_to_disk(folder)
    source = {
        "kind": "hub",
        "path": str(folder),
        "splits": {"test": "train"},
        "task": {**TASK, "kind": "pair_classification"},
    }
    built = ADAPTER.validate_python({"kind": "concatenated", "source": source, "n_sentences": 2})
    corpus = built.build()
    assert corpus.task == built.task_kind == "pair_classification"
    assert corpus.label_names == ("0", "1")
    assert corpus.split("test").column("label").to_pylist() == classes


def test_facts_change_with_every_field_and_the_bytes_but_not_the_name(
    files: dict[str, str], tmp_path: Path
) -> None:
    one = {"test": files["test"]}
    facts = config(one, n_sentences=2).facts()
    assert set(facts) == set(ConcatenatedCorpus.model_fields)
    base = canonical_json(facts)
    same = {"test": str(write(tmp_path / "same.parquet", pairs("test")))}
    assert canonical_json(config(same, n_sentences=2).facts()) == base
    changes: list[dict[str, Any]] = [
        {"n_sentences": 3},
        {"n_sentences": None, "n_words": 2},
        {"distractors": "shared"},
        {"place": "last"},
        {"seed": 1},
    ]
    for change in changes:
        other = config(one, **{"n_sentences": 2, **change}).facts()
        assert canonical_json(other) != base
    write(Path(same["test"]), pairs("other"))
    assert canonical_json(config(same, n_sentences=2).facts()) != base


def test_what_cannot_be_padded_is_refused(files: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"dev\.parquet: its 30 different .* 15 for a text; ask"):
        config(files, n_sentences=15).build()
    # 28 others are enough once for both, and not twice.
    assert config(files, n_sentences=15, distractors="shared").build().splits
    with pytest.raises(InputError, match="too few for texts of 500 words"):
        config(files, n_words=500).build()
    with pytest.raises(ValidationError, match="n_sentences is None and n_words is None; give one"):
        config(files)
    with pytest.raises(ValidationError, match="n_sentences is 1 and n_words is 9; give one"):
        config(files, n_sentences=1, n_words=9)
    plain = {"kind": "files", "files": files, "task": {"kind": "unlabelled", "text": "a"}}
    with pytest.raises(ValidationError, match="'unlabelled'; its pairs need labels"):
        ADAPTER.validate_python({"kind": "concatenated", "source": plain, "n_words": 9})
    carved = {
        "kind": "files",
        "files": {"train": files["test"]},
        "task": TASK,
        "dev": {"kind": "from_train", "fraction": 0.5},
    }
    with pytest.raises(ValidationError, match="another one at every length"):
        ADAPTER.validate_python({"kind": "concatenated", "source": carved, "n_words": 9})
