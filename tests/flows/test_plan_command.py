"""`plan` and `why` in a home where an experiment has run: the YAML's words, groups, times, and the page about
them."""

import contextlib
import json
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from permafrost.flows.cli.common import console
from permafrost.flows.origin import RECORDED
from permafrost.storage.artifacts import ArtifactStore
from tests.documents import marked
from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import write
from tests.flows.looked import look

TAU = "methods.GLOT.head.tau=0.5"


class Asked:
    """A command in this process, with its lines as printed."""

    def __init__(self, home: Path, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.home, self.file, self._capsys = home, file, capsys

    def __call__(self, *arguments: str) -> list[str]:
        from permafrost.flows.cli import main

        self._capsys.readouterr()
        argv = sys.argv
        sys.argv = ["permafrost", *arguments, "--home", str(self.home)]
        try:
            with contextlib.suppress(SystemExit):
                main()
        finally:
            sys.argv = argv
        return [line.rstrip() for line in self._capsys.readouterr().out.splitlines()]

    def plan(self, *overrides: str) -> dict[str, Any]:
        sets = [part for override in overrides for part in ("--set", override)]
        return json.loads("\n".join(self("plan", str(self.file), *sets, "--json")))


@pytest.fixture
def asked(
    finished_home: Path,
    experiment_file: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Asked:
    monkeypatch.setattr(console, "width", 160)
    return Asked(finished_home, experiment_file, capsys)


def form(line: str) -> str:
    """A line without the experiment's name and its numbers: keys, times of day, amounts."""
    line = re.sub(r"report of \w+", "report of NAME", line)
    line = re.sub(r"[0-9a-f]{32}", "KEY", line)
    line = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", "WHEN", line)
    line = re.sub(r"\d[\d.,]*\d|\d", "N", line)
    return re.sub(r"N (?:s|min|h)\b", "TIME", re.sub(r"N (?:B|kB|MB|GB)\b", "SIZE", line))


def whys(lines: list[str]) -> set[str]:
    """The forms of the reasons in a plan's table."""
    cells = [line.split("│") for line in lines if line.count("│") == 4]
    return {form(cell[3].strip()) for cell in cells}


def test_what_is_left_free_is_told_with_what_is_written(
    asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=67_108_864))
    asked.home = tmp_path / "new"
    (line,) = [line for line in asked("plan", str(asked.file)) if line.startswith("to write")]
    assert form(line) == "to write SIZE and SIZE left free, together SIZE, free SIZE: does not fit"
    assert "and 67.1 MB left free" in line
    assert line.endswith(", free 67.1 MB: does not fit")


def test_plans_group_what_has_one_cause_and_name_it_as_the_yaml_does(asked: Asked) -> None:
    plan = asked.plan(TAU, "methods.mean.optim.lr=0.5", "seeds=[0,2]")
    rows = {
        (r["stage"], r["why"]): (r["n_run"], r["n_reuse"]) for r in plan["stages"] if r["n_run"]
    }
    both = "mean, GLOT, shuffled on ratio 0.2, ratio 0.5, seed 2"
    assert rows == {
        ("fit", "new: no earlier fit of mean, GLOT, shuffled on ratio 0.2, ratio 0.5, seed 2"): (
            8,
            2,
        ),
        ("fit", "GLOT: head.tau 0.3 -> 0.5"): (4, 0),
        ("fit", "mean: optim.lr 0.01 -> 0.5"): (2, 0),
        ("choose", "because its fits changed"): (2, 0),
        ("choose", "new: no earlier choice of GLOT on ratio 0.2, ratio 0.5, seed 2"): (2, 0),
        ("score", f"new: no earlier score of {both}"): (6, 2),
        ("score", "because its fit changed"): (4, 0),
        ("report", "seed 2 added; seed 1 removed"): (1, 0),
    }
    fits = next(r for r in plan["stages"] if r["why"].startswith("GLOT"))
    assert fits["nodes"][0].startswith("fit GLOT · ratio 0.2 · seed 0 · ")
    said = json.dumps([r["why"] for r in plan["stages"]])
    assert "config." not in said
    assert not re.search(r"[0-9a-f]{12}|\[\d+\]", said)


def test_more_layers_are_an_extraction_of_those(asked: Asked) -> None:
    plan = asked.plan("capture=hidden=0-2@tokens")
    (row,) = [r for r in plan["stages"] if r["n_run"]]
    assert (row["stage"], row["why"], row["n_run"]) == ("extract", "layer hidden/0 added", 2)
    assert set(plan["stores"][0]["bytes_per_array"]) == {"hidden/0"}


def test_times_are_those_of_earlier_fits_scaled(asked: Asked) -> None:
    """By hand: seconds of the earlier fits of each method and task, by their epochs."""
    plan = asked.plan(TAU, "methods.GLOT.optim.max_epochs=6")
    times = {t["stage"]: t for t in plan["times"]}
    nodes = look(asked.file, asked.home).nodes.graph
    store = ArtifactStore(asked.home)
    took = [
        store.manifest(node.ref).provenance["seconds"]
        for node in nodes
        if node.stage == "fit" and node.origins[0].name == "GLOT"
    ]
    # Three times as many epochs, each fit once more.
    assert times["fit"]["seconds"] == pytest.approx(3 * sum(took))
    assert times["fit"]["basis"] == "8 earlier on cpu by examples x epochs"
    assert plan["seconds"] == pytest.approx(sum(t["seconds"] for t in plan["times"]))
    unknown = asked.plan("methods.other={kind: bag_of_words, c: [3.0]}")
    assert {t["stage"]: t["seconds"] is None for t in unknown["times"]} == {
        "control": True,
        "report": False,
    }
    assert unknown["times"][0]["n_unknown"] == 2


def test_what_is_recorded_is_beside_the_key(asked: Asked) -> None:
    nodes = look(asked.file, asked.home).nodes
    store = ArtifactStore(asked.home)
    for node in nodes.graph:
        manifest = store.manifest(node.ref)
        assert manifest.provenance["device"] == "cpu"
        assert manifest.provenance[RECORDED] == [o.model_dump(mode="json") for o in node.origins]
        assert manifest.spec == node.spec, "nothing of it is in the key"
    (fit,) = [n for n in nodes.graph if n.label == "fit shuffled · ratio 0.2 · seed 1"]
    assert (fit.origins[0].name, fit.origins[0].task, fit.origins[0].seed) == (
        "shuffled",
        "ratio 0.2",
        1,
    )
    assert fit.origins[0].written["labels"] == "shuffled"
    (counted,) = [n for n in nodes.graph if n.label == "control length · ratio 0.2"]
    assert counted.origins[0].seed is None


def test_the_page_about_plans_shows_what_they_print(asked: Asked) -> None:
    (shown,) = marked("form: plan")
    command, *doc = shown.splitlines()
    assert command.endswith(f"--set {TAU}")
    printed = asked("plan", str(asked.file), "--set", TAU)
    assert [c.strip() for c in printed[1].split("┃")] == [c.strip() for c in doc[1].split("┃")]
    assert whys(doc) <= whys(printed)
    told = {form(line) for line in printed}
    below = [form(line) for line in doc if line.startswith(("extraction", "to write", "estimated"))]
    assert len(below) == 3
    assert set(below) <= told
    assert doc[-1].startswith("taken from fit: ")


def test_the_page_shows_what_why_prints(asked: Asked) -> None:
    blocks = marked("form: why")
    assert len(blocks) == 2
    for block in blocks:
        command, *doc = block.splitlines()
        _, _, _, stage, *rest = command.split()
        given = ["--experiment", str(asked.file), *rest[2:]] if rest else []
        printed = {form(line) for line in asked("why", stage, *given)}
        assert {form(line) for line in doc} <= printed, printed


def test_data_are_told_by_their_file(asked: Asked, tmp_path: Path, tiny_bert: Path) -> None:
    """A home that has seen a file, and the file after it was edited; nothing but its corpus is computed."""
    table = tmp_path / "train.csv"
    rows = [f"lake {i} is deep,{'ab'[i % 2]}" for i in range(12)]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    other = tmp_path / "test.csv"
    other.write_text("text,label\na pond,a\na sea,b\n")
    files = {"train": str(table), "dev": str(other), "test": str(other)}
    content = tiny_experiment(tiny_bert)
    content["tasks"] = {
        "lakes": {"kind": "files", "files": files, "task": {"kind": "classification"}}
    }
    content["methods"] = {"words": {"kind": "bag_of_words"}, "mean": content["methods"]["mean"]}
    content["report"] = {"title": "Lakes"}
    asked.file = write(tmp_path / "lakes.yaml", content)
    asked.home = tmp_path / "home"
    made = look(asked.file, asked.home)
    (corpus,) = [n for n in made.nodes.graph if n.stage == "corpus"]
    with made.artifacts.publishing(
        corpus.spec, {RECORDED: [o.model_dump(mode="json") for o in corpus.origins]}
    ) as draft:
        made.corpus("lakes").save(draft.folder)
    table.write_text(
        "\n".join(["text,label", *rows[1:6], "else,b", *rows[7:], "new,a", "more,b"]) + "\n"
    )
    plan = asked.plan()
    first = next(r["why"] for r in plan["stages"] if r["stage"] == "corpus")
    assert first == "lakes: train.csv: 2 texts new, 1 gone, 1 changed"
    shutil.rmtree(made.artifacts.folder(corpus.ref))
    assert asked.plan()["stages"][0]["why"] == "new: no earlier corpus"
