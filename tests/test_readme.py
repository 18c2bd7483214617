"""The documents are true: snippets run, commands, flags and paths exist, links lead somewhere."""

import ast
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml

from permafrost.flows.cli.app import app
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.storage.errors import InputError
from tests.documents import DOCUMENTS, README, ROOT, marked, name_of, text_of
from tests.storage.small_store import SmallStore, filled_store

ARRAY = "hidden/6"
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
RUN_BY_TESTS = {
    "opens a store",
    "an experiment",
    "fields of an experiment",
    "a typing error",
    "the front door",  # tests/flows/test_run_in_python.py
    "uses a trained head",  # tests/flows/test_export_command.py
    "joins the tables of a corpus",  # tests/flows/test_store_tables.py
    "the tokenizer of a store",  # tests/flows/test_store_tables.py
    "a folder for the hub",
    "pulls from another home",  # tests/flows/test_sharing.py
    "keeps a home small",  # tests/flows/disk/test_retention.py
    "a head of your own",  # tests/flows/test_plugins.py
    "a source of your own",  # tests/stages/corpus/test_given_rows.py
    "scores by mteb",  # tests/stages/mteb_evaluation/test_python_encoder.py
    "predicts",  # tests/flows/texts/test_predict_command.py
}
"""What marked snippets are; each is run by a test here, or where it says."""
PAIRS = {
    "kind": "files",
    "files": {"train": "p.csv", "dev": "d.csv"},
    "task": {"kind": "similarity"},
}
AROUND = {
    "name": "mine",
    "backbone": {"source": "minilm"},
    "capture": "hidden=3,6@tokens",
    "tasks": {"stsb": PAIRS},
}
"""What stands around fields of an experiment that are shown by themselves."""


def _opening() -> tuple[str, list[str]]:
    """The snippet that finds a text in a store, and those that open the store."""
    blocks = marked("test: opens a store", "python")
    (where,) = (block for block in blocks if "store = " in block)
    return where, [block for block in blocks if block != where]


def _code(text: str) -> list[str]:
    """Lines of code blocks, and code inside sentences."""
    blocks = re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.M | re.S)
    without = re.sub(r"^ *```\w*\n.*?^ *```$", "", text, flags=re.M | re.S)
    return [line for block in blocks for line in block.splitlines()] + re.findall(
        r"`([^`\n]+)`", without
    )


def _tree() -> list[str]:
    """Paths that the annotated tree names."""
    (block,) = marked("tree")
    paths, parents = list[str](), list[str]()
    for line in block.splitlines():
        indent, name = re.match(r"( *)(\S+)", line).groups()  # type: ignore[union-attr]
        depth = len(indent) // 2
        parents[depth:] = [name]
        paths.append("".join(parents))
    return paths


def _anchors(document: Path) -> set[str]:
    """The names under which links find a page's headings."""
    text = re.sub(r"^ *```\w*\n.*?^ *```$", "", text_of(document), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallStore:
    """A store under `.permafrost` of the working folder, where the snippets look for one."""
    monkeypatch.chdir(tmp_path)
    return filled_store(tmp_path / ".permafrost", arrays=(ARRAY, "attention_rows/6"))


def test_every_way_to_open_a_store_gives_the_stored_rows(small: SmallStore) -> None:
    where, ways = _opening()
    assert len(ways) == 6
    names: dict[str, Any] = {}
    exec(compile(where, "store.md", "exec"), names)
    expected = small.expected(ARRAY, names["text"])
    assert (names["start"], names["n"]) == (0, len(expected))
    for way in ways:
        names["rows"] = None
        exec(compile(way, "store.md", "exec"), names)
        assert np.array_equal(names["rows"], expected), way


def test_the_first_snippet_notices_a_cell_that_is_not_committed(small: SmallStore) -> None:
    (small.store.root / "receipts/000000" / f"{ARRAY}.json").unlink()
    with pytest.raises(AssertionError, match="not committed"):
        exec(compile(_opening()[0], "store.md", "exec"), {})


def test_every_marked_snippet_is_run_by_a_test() -> None:
    found = {
        name
        for page in DOCUMENTS
        for name in re.findall("^<!-- test: (.*?) -->", text_of(page), re.M)
    }
    assert found == RUN_BY_TESTS


def test_the_experiments_shown_are_valid(tmp_path: Path) -> None:
    shown = [yaml.safe_load(block) for block in marked("test: an experiment", "yaml")]
    assert [one["name"] for one in shown] == ["mine", "search", "layers", "inside"]
    parts = [yaml.safe_load(block) for block in marked("test: fields of an experiment", "yaml")]
    for fields in (*shown, *({**AROUND, **part} for part in parts)):
        path = tmp_path / "mine.yaml"
        path.write_text(yaml.safe_dump(fields), encoding="utf-8")
        experiment = load_experiment(path)
        assert set(experiment.methods) == set(fields["methods"])


def test_a_typing_error_is_answered_as_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (shown,) = marked("test: a typing error")
    command, *answer = shown.splitlines()
    file, override = re.fullmatch(r"\$ permafrost plan (\S+) --set (\S+)", command).groups()  # type: ignore[union-attr]
    with pytest.raises(InputError) as raised:
        load_experiment(Path(file), [override])
    assert "error: " + str(raised.value) == "\n".join(answer)


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


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_commands_and_flags_exist(document: Path) -> None:
    for line in _code(text_of(document)):
        for name, rest in re.findall(r"\bpermafrost ([a-z]+)\b([^|#&;]*)", line):
            assert name in COMMANDS, line
            flags = {f for p in COMMANDS[name].params for f in p.opts}
            for flag in re.findall(r"(?<!\S)\[?(--?[a-z][a-z-]*)", rest):
                assert flag in {*flags, "--help"}, line


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_python_and_yaml_can_be_read(document: Path) -> None:
    text = text_of(document)
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S):
        ast.parse(block)
    for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.M | re.S):
        yaml.safe_load(block)


def test_readme_has_a_screen_for_each_use_and_names_every_command() -> None:
    text = text_of(README)
    assert text.count("\n") <= 250
    named = set(re.findall(r"permafrost ([a-z]+)\b", "\n".join(_code(text))))
    assert named == set(COMMANDS)


def test_the_short_table_of_the_demo_has_lines_of_the_whole_one() -> None:
    short, whole = marked("demo output")
    assert set(short.splitlines()) < set(whole.splitlines())


def test_the_short_plan_has_lines_of_the_whole_one() -> None:
    (short,) = marked("plan output")
    assert set(short.splitlines()) < set(text_of(ROOT / "docs" / "plan.md").splitlines())


def test_every_name_of_code_in_the_glossary_is_one() -> None:
    page = text_of(ROOT / "docs" / "glossary.md")
    quoted = " ".join(re.findall(r"`([^`]+)`", page))
    modules = (p for room in ("flows", "stages", "storage") for p in (ROOT / room).rglob("*.py"))
    words = set[str]().union(*(re.findall(r"\w+", p.read_text("utf-8")) for p in modules))
    assert set(re.findall(r"[A-Za-z_]\w*", quoted)) <= words


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    for document in DOCUMENTS:
        for line in _code(text_of(document)):
            for target in re.findall(r"(?:^|`)\s*make ([a-z-]+)", line):
                assert target in targets, (document.name, line)


def test_every_path_of_the_tree_exists() -> None:
    assert [p for p in _tree() if not (ROOT / p).exists()] == []


def test_every_package_is_in_the_tree() -> None:
    shown = set(_tree())
    for room in ("flows", "stages", "storage"):
        for package in (ROOT / room).rglob("__init__.py"):
            assert f"{package.parent.relative_to(ROOT).as_posix()}/" in shown


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_and_named_files_exist(document: Path) -> None:
    text = text_of(document)
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", text):
        page = document.parent / target if target else document
        assert page.exists(), target
        assert not anchor or anchor in _anchors(page), (target, anchor)
    rooms = r"(?:flows|stages|storage|experiments|tests|benchmarks|docs)"
    for path in re.findall(rf"`({rooms}/[\w./-]+)`", text):
        assert (ROOT / path).exists(), path
