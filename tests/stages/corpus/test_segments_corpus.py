"""Halves of texts as a corpus."""

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.corpus.sources.segments import SegmentsCorpus
from permafrost.storage.errors import InputError
from permafrost.storage.keys import canonical_json

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
LINES = [" ".join(f"{word}{i}" for word in "abcdefg") for i in range(6)]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def config(
    files: dict[str, Path], source: dict[str, Any] | None = None, **fields: Any
) -> CorpusConfig:
    inner = {
        "kind": "files",
        "files": {split: str(path) for split, path in files.items()},
        "task": {"kind": "unlabelled"},
        **(source or {}),
    }
    return ADAPTER.validate_python({"kind": "segments", "source": inner, "min_words": 4, **fields})


def test_examples_link_each_prefix_to_its_suffix(tmp_path: Path) -> None:
    path = write(tmp_path / "long.txt", [*LINES, "too short", LINES[2]])
    corpus = config({"test": path}).build()
    assert corpus.task == "unlabelled"
    assert len(corpus.texts) == 12
    rows = corpus.examples.to_pylist()
    pairs = [f"{corpus.texts[r['text']]} {corpus.texts[r['text_pair']]}" for r in rows]
    assert pairs == LINES
    assert {(r["split"], r["label"]) for r in rows} == {("test", None)}
    # Prefixes first: vectors[:n] and vectors[n:] are the two sides.
    assert [r["text"] for r in rows] == list(range(6))
    assert [r["text_pair"] for r in rows] == list(range(6, 12))
    corpus.save(tmp_path)
    assert Corpus.load(tmp_path) == corpus


def test_splits_are_cut_by_themselves(tmp_path: Path) -> None:
    files = {"a": write(tmp_path / "a.txt", LINES[:3]), "b": write(tmp_path / "b.txt", LINES[3:])}
    corpus = config(files, n_texts=2).build()
    assert corpus.splits == ("a", "b")
    assert [corpus.split(name).num_rows for name in "ab"] == [2, 2]
    write(files["b"], ["x y", "z"])
    with pytest.raises(InputError, match=r"b\.txt: .* of 2 texts 0 can be cut"):
        config(files).build()


def test_a_dataset_is_cut_like_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    Dataset.from_dict({"body": LINES}).save_to_disk(folder)
    source = {
        "kind": "hub",
        "path": str(folder),
        "splits": {"test": "train"},
        "task": {"kind": "unlabelled", "text": "body"},
    }
    built = ADAPTER.validate_python({"kind": "segments", "source": source, "min_words": 4}).build()
    files = config({"test": write(tmp_path / "same.txt", LINES)}).build()
    assert built == files
    assert (
        "files"
        in ADAPTER.validate_python({"kind": "segments", "source": source}).facts()["source"][
            "source"
        ]
    )


def test_facts_change_with_every_field_and_the_bytes_but_not_the_name(tmp_path: Path) -> None:
    path = write(tmp_path / "one.txt", LINES)
    facts = config({"test": path}).facts()
    # `cut` is a fact where it is given, so that corpora without it are what they were.
    assert set(facts) == set(SegmentsCorpus.model_fields) - {"cut"}
    base = canonical_json(facts)
    same = write(tmp_path / "two.txt", LINES)
    assert canonical_json(config({"test": same}).facts()) == base
    changes: list[dict[str, Any]] = [{"n_texts": 3}, {"min_words": 5}, {"seed": 1}]
    for change in changes:
        assert canonical_json(config({"test": path}, **change).facts()) != base
    write(same, LINES[1:])
    assert canonical_json(config({"test": same}).facts()) != base


def test_a_source_with_labels_or_a_carved_dev_split_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "one.txt", LINES)
    with pytest.raises(ValidationError, match="task of kind 'similarity'; use 'unlabelled'"):
        config({"test": path}, {"task": {"kind": "similarity"}})
    dev = {"kind": "from_train", "fraction": 0.5}
    with pytest.raises(ValidationError, match="nothing is trained on segments"):
        config({"train": path}, {"dev": dev})
    with pytest.raises(ValidationError, match="k"):
        config({"test": path}, k=(1,))
