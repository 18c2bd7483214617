"""The documents are true: snippets run, commands, flags and paths exist, links lead somewhere."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml

from permafrost.flows.cli.app import app
from permafrost.flows.experiment import load_experiment
from tests.storage.small_store import SmallStore, filled_store

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "benchmarks/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]

STORE_MARK = "<!-- test: opens a store -->"
TREE_MARK = "<!-- tree -->"
ARRAY = "hidden/6"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def _blocks_after(mark: str, language: str) -> list[str]:
    return re.findall(rf"^{re.escape(mark)}\n```{language}\n(.*?)^```$", README, re.M | re.S)


def _code(text: str) -> list[str]:
    """Lines of code blocks, and code inside sentences."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.M | re.S)
    without = re.sub(r"^ *```\w*\n.*?^ *```$", "", text, flags=re.M | re.S)
    return [line for block in blocks for line in block.splitlines()] + re.findall(
        r"`([^`\n]+)`", without
    )


def _tree() -> list[str]:
    """Paths that the annotated tree names."""
    (block,) = _blocks_after(TREE_MARK, "")
    paths, parents = list[str](), list[str]()
    for line in block.splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        depth = len(indent) // 2
        parents[depth:] = [name]
        paths.append("".join(parents))
    return paths


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallStore:
    """A store under `.permafrost` of the working folder, where the snippets look for one."""
    monkeypatch.chdir(tmp_path)
    return filled_store(tmp_path / ".permafrost", arrays=(ARRAY, "attention_rows/6"))


def test_every_way_to_open_a_store_gives_the_stored_rows(small: SmallStore) -> None:
    where, *ways = _blocks_after(STORE_MARK, "python")
    assert len(ways) == 5
    names: dict[str, Any] = {}
    exec(compile(where, "README.md", "exec"), names)
    expected = small.expected(ARRAY, names["text"])
    assert (names["start"], names["n"]) == (0, len(expected))
    for way in ways:
        names["rows"] = None
        exec(compile(way, "README.md", "exec"), names)
        assert np.array_equal(names["rows"], expected), way


def test_the_first_snippet_notices_a_cell_that_is_not_committed(small: SmallStore) -> None:
    (small.store.root / "receipts/000000" / f"{ARRAY}.json").unlink()
    with pytest.raises(AssertionError, match="not committed"):
        exec(compile(_blocks_after(STORE_MARK, "python")[0], "README.md", "exec"), {})


def test_the_experiment_shown_is_valid(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```yaml\n(.*?)^```$", README, re.M | re.S)
    path = tmp_path / "mine.yaml"
    path.write_text(block, encoding="utf-8")
    experiment = load_experiment(path)
    assert set(experiment.methods) == set(yaml.safe_load(block)["methods"])


@pytest.mark.parametrize(
    "file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.stem
)
def test_what_an_experiment_says_to_set_can_be_set(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PERMAFROST_DATA", "PERMAFROST_MODELS"):
        monkeypatch.setenv(name, "somewhere")
    comments = "\n".join(re.findall(r"^#.*", file.read_text(encoding="utf-8"), re.M))
    for override in re.findall(r"--set ([\w.]+=[^\s;]+)", comments):
        load_experiment(file, [override.rstrip(".,)")])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_commands_and_flags_exist(document: Path) -> None:
    for line in _code(document.read_text(encoding="utf-8")):
        for name, rest in re.findall(r"\bpermafrost ([a-z]+)\b([^|#&;]*)", line):
            assert name in COMMANDS, line
            flags = {f for p in COMMANDS[name].params for f in p.opts}
            for flag in re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", rest):
                assert flag in {*flags, "--help"}, line


def test_every_command_is_named() -> None:
    named = set(re.findall(r"permafrost ([a-z]+)\b", "\n".join(_code(README))))
    assert named == set(COMMANDS)


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in DOCUMENTS:
        for line in _code(document.read_text(encoding="utf-8")):
            for target in re.findall(r"(?:^|`)\s*make ([a-z-]+)", line):
                assert target in targets, (document.name, line)


def test_every_path_of_the_tree_exists() -> None:
    assert [p for p in _tree() if not (ROOT / p).exists()] == []


def test_every_package_is_in_the_tree() -> None:
    shown = set(_tree())
    for room in ("flows", "stages", "storage"):
        for package in (ROOT / room).rglob("__init__.py"):
            assert f"{package.parent.relative_to(ROOT).as_posix()}/" in shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_links_and_named_files_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", text):
        assert (document.parent / target).exists(), target
    rooms = r"(?:flows|stages|storage|experiments|tests|benchmarks|docs)"
    for path in re.findall(rf"`({rooms}/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
