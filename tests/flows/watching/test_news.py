"""New rows in a source are noticed, named and extracted, and nothing else is extracted again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from permafrost.flows.engine.serial import SerialEngine
from permafrost.flows.nodes.extraction import Extract
from permafrost.flows.running import checked, run_backbone_part
from permafrost.flows.watching.news import News, whats_new
from permafrost.stages.corpus.rows import SplitRows
from permafrost.stages.corpus.sources import hub
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.storage.durable import read_json
from permafrost.storage.errors import ChangedError
from permafrost.storage.features.store import all_stores
from permafrost.storage.keys import text_digest

Rows = list[dict[str, Any]]
Source = dict[str, Any]
FIRST, NEW = 12, 3


def rows(start: int, n: int) -> Rows:
    return [
        {"text": f"the {['good', 'bad'][i % 2]} film number {i}", "label": i % 2}
        for i in range(start, start + n)
    ]


def to_jsonl(path: Path, found: Rows) -> None:
    with path.open("a") as file:
        file.writelines(f"{json.dumps(row)}\n" for row in found)


def grows_jsonl(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Callable[[], None]]:
    """Lines are added to a file."""
    path = folder / "train.jsonl"
    to_jsonl(path, rows(0, FIRST))
    return {"kind": "files", "files": {"train": str(path)}}, lambda: to_jsonl(
        path, rows(FIRST, NEW)
    )


def grows_parquet(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Source, Callable[[], None]]:
    """A file is replaced by a longer one."""
    path = folder / "train.parquet"

    def write(n: int) -> None:
        columns = {name: [row[name] for row in rows(0, n)] for name in ("text", "label")}
        pq.write_table(pa.table(columns), path)

    write(FIRST)
    return {"kind": "files", "files": {"train": str(path)}}, lambda: write(FIRST + NEW)


def grows_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Source, Callable[[], None]]:
    """A file is put into a folder beside those that are there, whatever they are called."""
    to_jsonl(folder / "monday.jsonl", rows(0, FIRST))
    source = {"kind": "files", "files": {"train": str(folder / "*.jsonl")}}
    return source, lambda: to_jsonl(folder / "tuesday.jsonl", rows(FIRST, NEW))


def grows_parts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Callable[[], None]]:
    """A numbered part is put into a folder."""
    to_jsonl(folder / "part-0.jsonl", rows(0, FIRST))
    source = {"kind": "files", "files": {"train": str(folder)}}
    return source, lambda: to_jsonl(folder / "part-1.jsonl", rows(FIRST, NEW))


def grows_dataset(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Source, Callable[[], None]]:
    """A dataset of the hub has another commit."""
    datasets = pytest.importorskip("datasets")
    now = {"commit": "a" * 40, "n": FIRST}
    monkeypatch.setattr(hub, "resolve_commit", lambda path, revision: now["commit"])
    monkeypatch.setattr(
        hub, "open_split", lambda *_: datasets.Dataset.from_list(rows(0, int(now["n"])))
    )
    source = {"kind": "hub", "path": "someone/reviews", "splits": {"train": "train"}}
    return source, lambda: now.update(commit="b" * 40, n=FIRST + NEW)


def experiment(backbone: Path, source: Source) -> dict[str, Any]:
    task = {
        **source,
        "task": {"kind": "classification", "text": "text", "label": "label"},
        "dev": {"kind": "from_train", "fraction": 0.25},
        "test": {"kind": "from_train", "fraction": 0.25},
    }
    return {
        "name": "watched",
        "backbone": {"source": str(backbone)},
        "tasks": {"reviews": task},
        "capture": "hidden=2@tokens",
        "methods": {"mean": {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/2"}},
        "runtime": {"extract": {"device": "cpu"}},
    }


def test_lines_that_are_added_while_a_file_is_read_are_told_from_wrong_ones(
    tmp_path: Path, tiny_bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, grow = grows_jsonl(tmp_path, monkeypatch)
    read = FilesCorpus.rows

    def grown(self: FilesCorpus) -> list[SplitRows]:
        found = read(self)
        grow()
        return found

    monkeypatch.setattr(FilesCorpus, "rows", grown)
    with pytest.raises(ChangedError, match="'corpus reviews' changed while it was read"):
        checked(experiment(tiny_bert, source), str(tmp_path / "home"), ())


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "grows", [grows_jsonl, grows_parquet, grows_folder, grows_parts, grows_dataset]
)
def test_new_rows_are_named_and_only_they_are_extracted(
    tmp_path: Path,
    tiny_bert: Path,
    monkeypatch: pytest.MonkeyPatch,
    grows: Callable[[Path, pytest.MonkeyPatch], tuple[Source, Callable[[], None]]],
) -> None:
    (data := tmp_path / "data").mkdir()
    source, grow = grows(data, monkeypatch)
    document, home = experiment(tiny_bert, source), tmp_path / "home"

    def look() -> News:
        return whats_new(checked(document, str(home), ()))

    def extract() -> dict[str, Any]:
        """What the extraction says of itself."""
        found = checked(document, str(home), ())
        run_backbone_part(found, SerialEngine(), Console(quiet=True))
        (node,) = (n for n in found.nodes.graph if n.stage == Extract.name)
        return read_json(found.context.artifacts.open(node.ref) / "view.json")

    first = look()
    assert len(first.nodes) == 2
    assert extract()["n_texts"] == FIRST
    # Fits and scores of three seeds, and the report.
    assert look() == News((), (), first.content, n_corpora=1, n_waiting=7)

    grow()
    new = look()
    assert new.content != first.content
    corpus, extraction = new.told
    assert corpus.startswith("corpus reviews: ")
    assert f"{NEW} texts new" in corpus
    assert extraction.endswith(f"({NEW} texts new)")

    view = extract()
    assert view["n_texts"] == FIRST + NEW
    (store,) = all_stores(home)
    stored = [row for i in store.segments() for row in store.segment(i).table.to_pylist()]
    digests = [row["digest"] for row in stored]
    assert sorted(digests) == sorted(text_digest(r["text"]) for r in rows(0, FIRST + NEW))
    added = {text_digest(r["text"]) for r in rows(FIRST, NEW)}
    assert view["n_tokens_computed"] == sum(
        row["n_tokens"] for row in stored if row["digest"] in added
    )
    assert look().nodes == ()
