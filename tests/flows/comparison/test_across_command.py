"""`permafrost across`: runs with several backbones in one table."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from permafrost.flows.comparison.across_runs import names_of, read_across
from permafrost.flows.pipeline import run_serially
from permafrost.flows.records.history import (
    Outcome,
    RunBegun,
    RunEnded,
    RunScore,
    begin,
    end,
    find_run,
)
from permafrost.stages.mteb_evaluation.suites import suite
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.errors import InputError
from tests.flows.experiments import pairs, write
from tests.flows.test_cli import Cli
from tests.stages.extraction.tiny_models import save_model


@pytest.fixture
def cli(tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    """A home in which one experiment has run with an encoder and with a decoder."""
    splits = ("train", "dev", "test")
    files = {s: str(pairs(tmp_path / f"{s}.parquet", 12, i)) for i, s in enumerate(splits)}
    content: dict[str, Any] = {
        "name": "encoder",
        "backbone": {"source": str(tiny_bert)},
        "tasks": {
            name: {
                "kind": "files",
                "files": files | {"test": files[test]},
                "task": {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"},
            }
            for name, test in (("one", "test"), ("two", "dev"))
        },
        "methods": {
            "max": {"kind": "embed", "method": "max"},
            "last token": {"kind": "embed", "method": "last"},
            "mean": {"kind": "embed", "method": "mean"},
        },
    }
    path, home = write(tmp_path / "experiment.yaml", content), tmp_path / "home"
    run_serially(path, home)
    decoder = save_model("llama", tmp_path / "small-llama")
    run_serially(path, home, ["name=decoder", f"backbone.source={decoder}"])
    return Cli(home, capsys)


@pytest.mark.deep
def test_a_decoder_with_weights_in_another_format_is_still_one(cli: Cli, tmp_path: Path) -> None:
    """Its parameters are not counted, and it is read at its last token all the same."""
    folder = tmp_path / "small-llama"
    weights = load_file(folder / "model.safetensors")
    torch.save(weights, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    row = "max / last token"
    written = cli.json("across", "encoder@1", "decoder@1", "--methods", f"{row}; mean")
    compared = cli.json("compare", "encoder@1", "decoder@1")["changes"]
    scores = {(c["method"], c["task"]): c["b"] for c in compared}
    assert written["backbones"][1]["n_parameters"] is None
    assert written["backbones"][1]["test"][row]["one"] == scores["last token", "one"]
    said = cli("across", "encoder@1", "decoder@1")
    assert "The parameters of small-llama are not known" in said
    assert "small-llama is not where" not in said
    # A file that transformers does not load, as beside some models of the hub, is not counted.
    (folder / "pytorch_model.bin").unlink()
    save_file(weights, folder / "model.safetensors")
    save_file(weights, folder / "consolidated.safetensors")
    counted = cli.json("across", "encoder@1", "decoder@1")["backbones"][1]["n_parameters"]
    assert counted == sum(tensor.numel() for tensor in weights.values())


@pytest.mark.deep
def test_an_experiment_is_its_latest_run_that_is_done(cli: Cli) -> None:
    named, numbered = (
        cli.json("across", *of) for of in (("encoder", "decoder"), ("encoder@1", "decoder@1"))
    )
    assert named == numbered
    same = cli.json("compare", "encoder", "decoder")
    assert same == cli.json("compare", "encoder@1", "decoder@1")
    earlier = find_run(cli.home, "decoder@1").begun
    begin(cli.home, "decoder", lambda number: earlier.model_copy(update={"number": number}))
    said = cli("compare", "encoder", "decoder")
    assert "decoder@2 came after decoder@1, and is not compared: " in said


def test_backbones_of_one_name_are_told_apart(tmp_path: Path) -> None:
    ours = [
        ("/a/m1/model", "main"),
        ("/b/m2/model", "main"),
        ("org/base", "main"),
        ("org/base", "v2"),
    ]
    assert names_of(ours) == ["m1/model", "m2/model", "base@main", "base@v2"]
    assert names_of([("/a/x", "main"), ("minilm", "main")]) == ["x", "minilm"]
    with pytest.raises(InputError, match="two of the runs have the backbone '/a/x'"):
        names_of([("/a/x", "main"), ("/a/x", "main")])


def recorded(
    home: Path,
    name: str,
    cells: list[tuple[str, str]],
    outcome: Outcome,
    tests: Mapping[str, float] | None = None,
    *,
    corpora: Mapping[str, str] | None = None,
    seeds: Sequence[int] = (0,),
    **config: Any,
) -> str:
    """A run of an experiment with these methods on these tasks, as far as it is recorded; each scored 0.5, or
    as `tests` says by method."""
    about: dict[str, Any] = {"experiment": name, "number": 1}
    of_cells: dict[str, Any] = {"role": "method", "metric": "accuracy", "dev": None}
    scores = tuple(
        RunScore(
            method=m,
            task=t,
            seed=seed,
            test=(tests or {}).get(m, 0.5),
            key=f"score/{'0' * 32}",
            **of_cells,
        )
        for m, t in cells
        for seed in seeds
    )
    begun = RunBegun(
        **about,
        begun="2026-01-01T00:00:00+00:00",
        overrides=(),
        config_digest=None,
        config={"backbone": {"source": f"/nowhere/{name}"}, **config},
        artifacts=(),
        stores=(),
        corpora=dict(corpora or {}),
    )
    begin(home, name, lambda _: begun)
    end(home, RunEnded(**about, ended="", seconds=1.0, outcome=outcome, results=scores))
    return f"{name}@1"


def test_what_not_all_runs_have_is_said_and_so_is_a_run_that_is_not_done(tmp_path: Path) -> None:
    cells = [(method, task) for method in ("mean", "max") for task in ("one", "two")]
    whole = recorded(tmp_path, "whole", [*cells, ("cls", "one")], "done")
    part = recorded(tmp_path, "part", [*cells[:3], ("cls", "one")], "failed")
    less = recorded(tmp_path, "less", cells, "done")
    found, remarks = read_across([whole, part], tmp_path, [])
    assert (found.methods, found.tasks) == (("mean", "max", "cls"), ("one",))
    assert "part@1 is not done (failed): scores of it may be missing." in remarks
    assert "Tasks on which not every run has every row are left out: two." in remarks
    assert not any("Methods" in remark or "whole@1 is" in remark for remark in remarks)
    found, remarks = read_across([whole, less], tmp_path, [])
    assert (found.methods, found.tasks) == (("mean", "max"), ("one", "two"))
    assert "Methods that not every run has are left out: cls." in remarks
    assert not any("left out" in r for r in read_across([whole, less], tmp_path, ["mean"])[1])


def test_runs_without_a_task_that_has_every_row_are_told_which_row_lacks_which_task(
    tmp_path: Path,
) -> None:
    cells = [("mean", "one"), ("heads", "two")]
    a, b = (recorded(tmp_path, name, cells, "done") for name in ("a", "b"))
    with pytest.raises(InputError, match="'heads' is not on one, 'mean' is not on two; name with"):
        read_across([a, b], tmp_path, [])
    c = recorded(tmp_path, "c", [("cls", "one")], "done")
    with pytest.raises(InputError, match="have no method in common"):
        read_across([a, c], tmp_path, [])
    d = recorded(tmp_path, "d", [("mean", "three")], "done")
    with pytest.raises(InputError, match="has all of the rows, as they share none"):
        read_across([a, d], tmp_path, [])


@pytest.mark.parametrize("name", ["mean/max", "mean / max"])
def test_a_method_whose_name_looks_like_two_rows_is_itself(tmp_path: Path, name: str) -> None:
    """Backbones that are not here: what they are must not be asked."""
    tests = {"mean": 0.1, "max": 0.2, name: 0.3}
    cells = [(method, "one") for method in tests]
    runs = [recorded(tmp_path, run, cells, "done", tests) for run in ("a", "b")]
    for methods in ([], [name]):
        found, _ = read_across(runs, tmp_path, methods)
        assert [run.tests[name, "one"] for run in found.runs] == [0.3, 0.3]
    # Of a run that lacks it nothing else takes its place.
    less = recorded(tmp_path, "c", cells[:2], "done", tests)
    with pytest.raises(InputError, match=f"with c, has no method '{name}'") as caught:
        read_across([runs[0], less], tmp_path, [name])
    assert f"the slash: '{name}'" not in str(caught.value)


@pytest.mark.parametrize("name", ["first/of all", "first /of all"])
def test_two_methods_without_spaces_between_them_are_told_how_they_are_one_row(
    tmp_path: Path, name: str
) -> None:
    cells = [("first", "one"), ("of all", "one")]
    runs = [recorded(tmp_path, run, cells, "done") for run in ("a", "b")]
    with pytest.raises(InputError, match=r"spaces around the slash: 'first / of all'$"):
        read_across(runs, tmp_path, [name])
    with pytest.raises(InputError, match=r"has no method 'first/cls'; there are first, of all$"):
        read_across(runs, tmp_path, ["first/cls"])


@pytest.mark.deep
def test_runs_are_one_table_with_parameters_groups_and_figures(
    cli: Cli, tiny_bert: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    rows = ["--methods", "max / last token; mean"]
    said = cli(
        *("across", "encoder@1", "decoder@1", *rows, "-o", str(out)),
        *("--group", "both=one+two", "--group", "second=two"),
    )
    assert "| small-llama | max / last token |" in said
    written = json.loads((out / "across.json").read_text())
    first, second = written["backbones"]
    assert [first["backbone"], second["backbone"]] == [tiny_bert.name, "small-llama"]
    weights = load_file(tiny_bert / "model.safetensors")
    assert first["n_parameters"] == sum(t.numel() for t in weights.values()) > 0
    assert set(first["standard_scores"]) == {"both", "second"}
    compared = cli.json("compare", "encoder@1", "decoder@1")["changes"]
    scores = {(c["method"], c["task"]): (c["a"], c["b"]) for c in compared}
    row = "max / last token"
    assert first["test"][row]["one"] == scores["max", "one"][0], "an encoder"
    assert second["test"][row]["one"] == scores["last token", "one"][1], "a decoder"
    assert {p.name for p in (out / "figures").iterdir()} == {"scores.png", "standard_scores.png"}
    # All that the runs share, and one group, unless said otherwise; a backbone that is gone has no size.
    (tmp_path / "small-llama").rename(tmp_path / "elsewhere")
    everything = cli.json("across", "encoder@1", "decoder@1")
    assert everything["methods"] == ["max", "last token", "mean"]
    assert everything["backbones"][1]["n_parameters"] is None
    assert "small-llama is not where its run found it" in cli("across", "encoder@1", "decoder@1")
    # Nor is it known then which token its row was to be read at.
    wrong = cli("across", "encoder@1", "decoder@1", *rows, code=2)
    assert "which of both small-llama is cannot be read" in wrong
    # What it cannot do.
    assert "needs two or more" in cli("across", "encoder@1", code=2)
    assert "two of the runs have the backbone" in cli("across", "encoder@1", "encoder@1", code=2)
    wrong = cli("across", "encoder@1", "decoder@1", "--methods", "first", code=2)
    assert "has no method 'first'; there are max, last token, mean" in wrong
    assert "two of the runs have the backbone" in cli("across", "encoder@1", "encoder", code=2)
    wrong = cli("across", "encoder@1", "decoder@1", "--methods", "max; mean; max", code=2)
    assert "the row 'max' is named twice" in wrong
    for groups, said in {
        ("g=one", "g=two"): "the group 'g' twice",
        ("g=one;one+two",): "the task 'one' twice",
    }.items():
        flags = [flag for group in groups for flag in ("--group", group)]
        assert said in cli("across", "encoder@1", "decoder@1", *flags, code=2)
    (tmp_path / "a file").write_text("mine")
    wrong = cli("across", "encoder@1", "decoder@1", "-o", str(tmp_path / "a file"), code=2)
    assert "is a file, and what is written are several; name a folder" in wrong
    assert (tmp_path / "a file").read_text() == "mine"
    wrong = cli("across", "encoder@1", "decoder@1", "--group", "three", code=2)
    assert "--group 'three' is not of the form" in wrong
    wrong = cli("across", "encoder@1", "decoder@1", "--group", "g=three", code=2)
    assert "names the task 'three'; the runs share one, two" in wrong


def corpus(home: Path, made_from: str, code: str) -> str:
    """A published corpus."""
    spec = ArtifactSpec(stage="corpus", config={"sha256": made_from}, code={"build": code})
    with ArtifactStore(home).publishing(spec, {}):
        pass
    return str(spec.ref)


def test_runs_on_other_data_are_refused_and_other_versions_of_our_code_are_not(
    tmp_path: Path,
) -> None:
    def of(name: str, ref: str | None, test: str) -> str:
        tasks = {"t": {"files": {"test": test}}}
        corpora = {} if ref is None else {"t": ref}
        return recorded(tmp_path, name, [("mean", "t")], "done", corpora=corpora, tasks=tasks)

    first = corpus(tmp_path, "11", "as it was")
    a = of("a", first, "here.csv")
    moved = of("b", first, "elsewhere.csv")
    recoded = of("c", corpus(tmp_path, "11", "as it is now"), "here.csv")
    assert read_across([a, moved, recoded], tmp_path, ["mean"])[1][6:] == []
    other = of("d", corpus(tmp_path, "22", "as it was"), "other.csv")
    with pytest.raises(
        InputError, match=r"'t' is not the same in a@1 and d@1 \(tasks.t.files.test"
    ):
        read_across([a, other], tmp_path, [])
    # The predictions are gone, too, so that nothing says whether it is the same.
    for name, ref in (("e", None), ("f", f"corpus/{'0' * 32}")):
        _, remarks = read_across([a, of(name, ref, "here.csv")], tmp_path, [])
        assert remarks[-1].endswith(f"a@1 and {name}@1 have the same test examples of t.")


def test_only_what_an_evaluation_says_of_a_task_counts_for_it(tmp_path: Path) -> None:
    def of(name: str, own: Mapping[str, Any], **others: Any) -> str:
        evaluations = {"local": {"tasks": {"t": own}, **others}, "more": {"suites": [name]}}
        return recorded(tmp_path, name, [("mean", "t")], "done", evaluations=evaluations)

    a = of("a", {"kind": "local", "n": 3})
    words = {"kind": "suite", "tasks": {"other": "Find:"}}
    same = of("b", {"kind": "local", "n": 3}, methods=["mean"], suites=["glot7"])
    _, remarks = read_across([a, same], tmp_path, [])
    assert remarks[-1] == (
        "Nothing is left that says whether a@1 and b@1 have the same test examples of t."
    )
    for other, said in {
        of("c", {"kind": "local", "n": 1}): "local.tasks.t.n: 3 in a@1, 1 in c@1",
        of("d", {"kind": "local", "n": 3}, instructions=words): (
            'local.instructions.kind: absent in a@1, "suite" in d@1'
        ),
    }.items():
        with pytest.raises(InputError, match=re.escape(f"(evaluations.{said})")):
            read_across([a, other], tmp_path, [])


def test_a_task_of_a_suite_is_the_same_by_name_or_as_the_experiment_writes_it(
    tmp_path: Path,
) -> None:
    def of(name: str, **evaluation: Any) -> str:
        config = {"evaluations": {name: evaluation}}
        return recorded(tmp_path, name, [("mean", "STS17")], "done", **config)

    suites = of("suites", suites=["va14"], tasks={})
    named = suite("va14")["STS17"].model_dump(mode="json")
    written = of("written", suites=[], tasks={"STS17": named})
    assert "Nothing is left" in read_across([suites, written], tmp_path, [])[1][-1]
    other = of("other", suites=["va14"], tasks={"STS17": {**named, "splits": ["train"]}})
    with pytest.raises(InputError, match=r"\(evaluations\.suites\.tasks\.STS17\.splits: "):
        read_across([suites, other], tmp_path, [])


def test_other_seeds_and_settings_are_said(tmp_path: Path) -> None:
    def of(name: str, seeds: Sequence[int], **layers: int) -> str:
        cells = [(method, "t") for method in layers]
        methods = {method: {"layer": layer} for method, layer in layers.items()}
        ref = {"t": f"corpus/{'0' * 32}"}
        return recorded(tmp_path, name, cells, "done", corpora=ref, seeds=seeds, methods=methods)

    runs = [of("a", (0, 1), mean=5, max=5, cls=1), of("b", (0,), mean=6, max=6, cls=1)]
    _, remarks = read_across(runs, tmp_path, [])
    assert remarks[4:] == [
        "Means are over 2 seeds in a@1, 1 seed in b@1: mean, max, cls.",
        "Settings of mean, max are not the same: layer: 5 in a@1, 6 in b@1.",
    ]


def test_a_place_that_cannot_be_written_is_refused_before_any_run_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "home").mkdir()
    cli = Cli(tmp_path / "home", capsys)
    said = cli("across", "a@1", "b@1", "-o", str(tmp_path / "file" / "x"), code=2)
    assert "which is not a folder; choose another place" in said
    said = cli("across", "a@1", "b@1", "-o", "/proc/x", code=2)
    assert "the tables cannot be written to '/proc/x'" in said
