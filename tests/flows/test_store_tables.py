"""docs/store-tables.md: the snippets give what its words say."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import permafrost
from permafrost.flows.dataset_folder import write_card
from permafrost.storage.errors import IdentityMismatchError, InputError, NotFoundError
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.writing import writing
from permafrost.storage.keys import text_digest
from tests.documents import snippet
from tests.flows.test_cli import Cli
from tests.storage.small_store import filled_store

JOIN = snippet("joins the tables of a corpus").replace("hidden/6", "hidden/2")
"""With a layer that the finished home has."""


@pytest.fixture
def home(finished_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A finished home under the name that the snippets read."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(finished_home, tmp_path / ".permafrost")


@pytest.mark.usefixtures("home")
def test_the_join_gives_every_example_its_text_and_its_tokens() -> None:
    names: dict[str, Any] = {}
    exec(compile(JOIN, "store-tables.md", "exec"), names)
    rows = names["examples"].to_pylist()
    assert len(rows) == 24 + 8 + 12
    assert all(row["digest"] == text_digest(row["string"]) for row in rows)
    assert set(names["corpora"]) == {"ratio 0.2", "ratio 0.5"}
    assert {names["label_names"][int(row["label"])] for row in rows} == set(names["label_names"])
    reader = permafrost.open(".permafrost").reader("hidden/2", [rows[0]["string"]], tokens="all")
    ((_, (expected,)),) = reader.in_order(1)
    assert np.array_equal(names["states"], expected)
    assert names["span"].shape == (len(expected),)
    assert names["span"].all(), "under plain a pooling runs over every token"


def test_a_text_in_two_segments_is_read_where_the_array_is_and_counts_once(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (store,) = permafrost.open(home).stores()
    cli, n_texts = Cli(home, capsys), len(set(_digests(store)))
    segment, axes = store.segment(0), store.record.axes
    names: dict[str, Any] = {}
    exec(compile(JOIN, "store-tables.md", "exec"), names)
    digest, states = names["example"]["digest"], names["states"]
    assert digest in segment.table.column("digest").to_pylist()
    # As `pull` leaves it: the same texts again, with no hidden/2 (yet).
    with writing(store) as writer:
        by = writer.next_number()
        moved = {"token_start": by * axes.segment_tokens, "text_row": by * axes.segment_texts}
        columns = {n: segment.table.column(n).to_numpy() + d for n, d in moved.items()}
        table = segment.table.to_pydict() | columns
        writer.add_segment(pa.Table.from_pydict(table, schema=segment.table.schema), by)
        writer.declare(["hidden/2"])
    exec(compile(JOIN, "store-tables.md", "exec"), names)
    assert names["example"]["digest"] == digest
    assert np.array_equal(names["states"], states)
    assert len(_digests(store)) > n_texts
    (row,) = cli.json("ls")["stores"]
    assert row["n_texts"] == n_texts
    assert f"- {n_texts:,} texts in {row['n_segments']} segments" in write_card(home).read_text()


def _digests(store: FeatureStore) -> list[str]:
    return [
        d for s in store.segments() for d in store.segment(s).table.column("digest").to_pylist()
    ]


@pytest.mark.usefixtures("home")
def test_the_tokenizer_of_a_store_gives_its_token_ids(home: Path, tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(compile(JOIN, "store-tables.md", "exec"), names)
    exec(compile(snippet("the tokenizer of a store"), "store-tables.md", "exec"), names)
    start, n = names["start"], names["n"]
    stored = names["group"]["token_ids"][start : start + n].tolist()
    assert names["tokenizer"](names["example"]["string"])["input_ids"] == stored
    opened = permafrost.open(home)
    moved = Path(opened.stores()[0].record.backbone["source"])
    changed = shutil.copytree(moved, tmp_path / "changed")
    path = changed / "tokenizer.json"
    path.write_text(path.read_text() + " ")
    with pytest.raises(IdentityMismatchError, match="tokenizer_digest"):
        opened.tokenizer(backbone=str(changed))
    with pytest.raises(NotFoundError, match="begins with 'zz'"):
        opened.tokenizer("zz")
    filled_store(home)
    with pytest.raises(InputError, match="2 feature stores fit"):
        opened.tokenizer()


def test_the_tokenizer_of_an_alias_loads_from_the_store(tmp_path: Path) -> None:
    from permafrost.stages.extraction.backbone import BackboneConfig
    from permafrost.stages.extraction.recipes import PlainRecipe
    from permafrost.stages.extraction.target import resolve_backbone

    source = BackboneConfig(source="minilm")
    target = resolve_backbone(source, "float16", "none").target(PlainRecipe(), ("hidden/1",))
    FeatureStore.create_or_open(
        tmp_path, target.identity, target.store_sizes, {"source": "minilm", "revision": ""}
    )
    tokenizer = permafrost.open(tmp_path).tokenizer()
    assert tokenizer("ice")["input_ids"] == target.tokenizer("ice")["input_ids"]
