"""The page on graphs is true: its tables, its source and its snippets work."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.graphs.given import GRAPHS_FOR_TEXTS
from permafrost.stages.graphs.sources.user_graphs import UserGraphs
from tests.stages.graphs.small_graphs import choices

PAGE = (Path(__file__).parents[3] / "docs" / "graphs.md").read_text(encoding="utf-8")


def block(mark: str, language: str) -> str:
    (found,) = re.findall(rf"<!-- {mark} -->\n```{language}\n(.*?)^```$", PAGE, re.M | re.S)
    return found


def test_the_tables_shown_are_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path
    for line in block("tables", "").splitlines():
        name, row = line[:18].strip(), line[18:]
        if name:
            file = tmp_path / "data" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text("")
        file.write_text(f"{file.read_text()}{row}\n")
    corpus = CORPUS_SOURCES.validate(yaml.safe_load(block("source", "yaml"))).build()
    assert corpus.label_names == ("no", "yes")
    assert corpus.counts()["n_edges"] == 1


def test_every_field_of_the_source_is_on_the_page() -> None:
    for name in UserGraphs.model_fields:
        assert name in PAGE, name


def test_what_gives_graphs_to_texts_is_on_the_page() -> None:
    for kind, cls in GRAPHS_FOR_TEXTS.kinds().items():
        assert f"kind: {kind}" in PAGE
        for name in cls.model_fields:
            assert name in PAGE, name
    spec = re.findall(r"--graphs '(.*)'", block("embed", "bash"))
    (given,) = (yaml.safe_load(text) for text in spec)
    assert GRAPHS_FOR_TEXTS.validate(given).kind == "tables"
    compile(block("encode", "python"), "graphs.md", "exec")


def test_data_become_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(block("data", "python"), "graphs.md", "exec"), names)
    source = CORPUS_SOURCES.validate(names["source"])
    assert source.task_kind == "classification"
    assert (tmp_path / "data" / "nodes.parquet").is_file()


def test_other_tools_open_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    corpus = choices()
    corpus.save(tmp_path)
    names: dict[str, Any] = {"folder": tmp_path}
    exec(compile(block("opens a corpus", "python"), "graphs.md", "exec"), names)
    graph = names["graph"]
    text = {node: data["text"] for node, data in graph.nodes(data=True)}
    own = [(text[a], d["name"], text[b]) for a, b, d in graph.edges(data=True) if a and b]
    assert sorted(own) == sorted(corpus.triples(0))
    assert graph.number_of_nodes() == 4
    # Here: at a process's end it tells of objects that tests keep out of garbage collection.
    import duckdb

    found = duckdb.sql(block("asks a corpus", "sql")).fetchall()
    assert sorted(found) == sorted(corpus.triples(0))
    assert {p.stem for p in tmp_path.iterdir()} <= set(re.findall(r"`([a-z]+)(?:\.json)?`", PAGE))
