"""`sample` keeps a seeded choice of a split's rows, whatever their order."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.corpus.source import CorpusConfig
from permafrost.storage.errors import InputError

ADAPTER: TypeAdapter[CorpusConfig] = TypeAdapter(CorpusConfig)
ROWS = [{"text": f"text {i}", "label": "no" if i < 500 else "yes"} for i in range(1000)]
"""Sorted by class, as IMDB is."""


def config(path: Path, n_rows: dict[str, int] | None, seed: int = 0, **fields: Any) -> Any:
    given = {
        "kind": "files",
        "files": {"train": str(path)},
        "task": {"kind": "classification"},
        **fields,
    }
    sample = {} if n_rows is None else {"sample": {"n_rows": n_rows, "seed": seed}}
    return ADAPTER.validate_python({**given, **sample})


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in rows[0]}), path)
    return path


def kept(corpus: Any, split: str = "train") -> list[str]:
    return [corpus.texts[i] for i in corpus.split(split).column("text").to_pylist()]


def test_a_dataset_sorted_by_class_gives_all_of_its_classes(tmp_path: Path) -> None:
    corpus = config(parquet(tmp_path / "a.parquet", ROWS), {"train": 200}).build()
    labels = Counter(corpus.split("train").column("label").to_pylist())
    assert sum(labels.values()) == 200 == len(corpus.texts), "nothing else would be extracted"
    # Of 200 drawn from two halves, the standard deviation of a count is 6.3.
    assert all(70 <= labels[c] <= 130 for c in (0, 1)), labels


def test_the_order_of_rows_does_not_matter_and_the_seed_does(tmp_path: Path) -> None:
    sorted_file = parquet(tmp_path / "a.parquet", ROWS)
    mixed = random.Random(0).sample(ROWS, len(ROWS))
    mixed_file = parquet(tmp_path / "b.parquet", mixed)
    first, second, other = (
        kept(config(path, {"train": 100}, seed).build())
        for path, seed in ((sorted_file, 0), (mixed_file, 0), (sorted_file, 1))
    )
    assert set(first) == set(second) != set(other)
    assert first == sorted(first, key=[r["text"] for r in ROWS].index), "rows stay in order"
    larger = kept(config(sorted_file, {"train": 150}).build())
    assert set(first) < set(larger), "a larger sample holds the smaller one"


def test_dev_is_carved_from_the_sample(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", ROWS)
    corpus = config(path, {"train": 100}, dev={"kind": "from_train", "fraction": 0.2}).build()
    whole = kept(config(path, {"train": 100}).build())
    assert (len(kept(corpus)), len(kept(corpus, "dev"))) == (80, 20)
    assert {*kept(corpus), *kept(corpus, "dev")} == set(whole)


def test_negatives_go_with_their_rows(tmp_path: Path) -> None:
    rows = [{"q": f"q{i}", "d": f"d{i}", "n": [f"n{i}", f"m{i}"][: i % 3]} for i in range(60)]
    path = parquet(tmp_path / "a.parquet", rows)
    task = {"kind": "unlabelled", "text": "q", "text_pair": "d", "negative": "n"}
    corpus = config(path, {"train": 20}, task=task).build()
    examples = corpus.split("train")
    assert examples.num_rows == 20
    for text, pair, negatives in zip(
        *(examples.column(c).to_pylist() for c in ("text", "text_pair", "negatives")), strict=True
    ):
        i = int(corpus.texts[text][1:])
        assert corpus.texts[pair] == f"d{i}"
        assert [corpus.texts[n] for n in negatives] == rows[i]["n"]


def test_datasets_are_sampled_too(tmp_path: Path) -> None:
    data = datasets.Dataset.from_list(ROWS)
    datasets.DatasetDict({"train": data}).save_to_disk(tmp_path / "saved")
    task = {"kind": "classification"}
    hub = {
        "kind": "hub",
        "path": str(tmp_path / "saved"),
        "splits": {"train": "train"},
        "task": task,
    }
    of_hub = ADAPTER.validate_python({**hub, "sample": {"n_rows": {"train": 50}}}).build()
    of_file = config(parquet(tmp_path / "a.parquet", ROWS), {"train": 50}).build()
    assert kept(of_hub) == kept(of_file)


def test_it_is_in_the_facts_and_nothing_is_without_one(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", ROWS)
    assert "sample" not in config(path, None).facts()
    facts = [config(path, {"train": n}, seed).facts() for n, seed in ((5, 0), (6, 0), (5, 1))]
    assert all(a != b for i, a in enumerate(facts) for b in facts[:i])


@pytest.mark.parametrize("n", [0, -1, 1001])
def test_more_rows_than_there_are_is_an_error(tmp_path: Path, n: int) -> None:
    wrong = config(parquet(tmp_path / "a.parquet", ROWS), {"train": n})
    with pytest.raises(
        InputError, match=rf"asks for {n} rows of the split 'train', .* has 1000; write 1 to"
    ):
        wrong.build()


def test_a_split_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="sample names the split 'tset'; there are train"):
        config(parquet(tmp_path / "a.parquet", ROWS), {"tset": 5})


def test_rows_in_messages_are_numbered_as_in_the_file(tmp_path: Path) -> None:
    rows = [{"text": f"text {i}", "label": -1 if i == 700 else i % 3} for i in range(1000)]
    path = parquet(tmp_path / "a.parquet", rows)
    for n_rows in (999, 900):
        with pytest.raises(InputError, match=r"row 701 of .*a\.parquet: the label -1 "):
            config(path, {"train": n_rows}).build()
    negatives = [{"q": f"q{i}", "d": f"d{i}", "n": f"{'dn'[i < 50]}{i}"} for i in range(60)]
    task = {"kind": "unlabelled", "text": "q", "text_pair": "d", "negative": "n"}
    path = parquet(tmp_path / "b.parquet", negatives)
    with pytest.raises(InputError, match=r"row (5[1-9]|60) of .*b\.parquet has a negative"):
        config(path, {"train": 20}, task=task).build()
