"""The experiment files of GT2VEC's tables: they parse, plan, have the paper's rows, and share fits."""

import shlex
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.pipeline import run_serially
from permafrost.flows.plan import make_plan
from permafrost.flows.preview import Preview
from permafrost.stages.report.claim_kinds import CurveClaim, Within
from permafrost.storage.errors import InputError
from tests.flows.experiments import rows_of
from tests.flows.kinds_in_keys import unkeyed_kinds
from tests.flows.paper_data import write_paper_data
from tests.short import short
from tests.stages.extraction.tiny_models import save_model

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers" / "gt2vec"
NETWORKS = {"GNN only", "RGCN", "QA-GNN", "GT2VEC LP", "GT2VEC LoRA"}
CONTROLS = {"graphs of others", "random node features", "shuffled labels"}
NOT_ALIGNED = {"two branches, not aligned", "graph and text alone"}
PAIRS = {*NETWORKS, *CONTROLS, *NOT_ALIGNED, "text only", "graph only"} - {"GNN only"}
SHARED_CONTROLS = {"graphs of others", "shuffled labels"}
E5 = {"E5-Mistral LP", "E5-Mistral LoRA"}
SEARCH = {*NETWORKS, *CONTROLS, *NOT_ALIGNED, "E5-Mistral zero-shot", "E5-Mistral LoRA"}
ABLATION = {
    "graph and text alone",
    "description and text alone",
    "two branches, not aligned",
    "GCN",
    "GIN",
}
ROWS = {
    "table1": {*NETWORKS, *CONTROLS, "LM only", "LM LoRA", "graph and text alone"},
    "table1_gold": {"upper bound", "upper bound of the text alone", "shuffled labels"},
    "table3": {*PAIRS, "bag of words"} - {"GT2VEC LoRA"},
    "table3_lora": {"text only LoRA", "GT2VEC LP", "GT2VEC LoRA", "graphs of others, LoRA"},
    "table4": {*NETWORKS, *CONTROLS, *NOT_ALIGNED, "zero-shot", "LM LoRA"},
    "table5": {
        *CONTROLS,
        *("graph and text alone", "description and text alone", "GT2VEC LP"),
    },
    "table6": {*CONTROLS, "graph and text alone", "GCN", "GAT", "GIN"},
    "table9": {*CONTROLS, *NOT_ALIGNED, "without graph", "GT2VEC LP"},
    "table10": {
        *SHARED_CONTROLS,
        *("graph and text alone", "minilm", "mixed6m", "stories260k", "random numbers"),
    },
    "figure3": {*CONTROLS, "graph and text alone", *(f"{n} layers" for n in range(3, 8))},
    "figure3a": {
        *CONTROLS,
        *("LM only", "graph and text alone", "GT2VEC LP", "GT2VEC LP, token last"),
    },
    "paper/commonsenseqa": {
        *E5,
        *NETWORKS,
        *ABLATION,
        *CONTROLS,
        *(f"nodes from E5{name}" for name in (" small", " base", " large", "-Mistral")),
        *(f"{n} layers" for n in range(4, 8)),
    },
    "paper/openbookqa": {
        *(*E5, *NETWORKS, *ABLATION, *CONTROLS),
        *(f"{n} layers" for n in (3, 4, 6, 7)),
    },
    "paper/medqa": {*E5, *NETWORKS, *CONTROLS, "graph and text alone"},
    "paper/webnlg": PAIRS,
    "paper/scifact": {*SEARCH},
    "paper/fiqa": {*SEARCH},
}
"""Rows by file; docs/papers/gt2vec.md says why others of the paper's are missing."""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models and made-up data."""
    folder = tmp_path_factory.mktemp("paper")
    (folder / "data").mkdir()
    write_paper_data(folder / "data")
    save_model("bert", folder / "bert")
    for family, name in (("llama", "mixed6m-gqa"), ("mistral", "stories260k-gqa")):
        save_model(family, folder / name)
    return folder


@pytest.fixture(autouse=True)
def environment(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERMAFROST_DATA", str(stand_ins / "data"))
    monkeypatch.setenv("PERMAFROST_MODELS", str(stand_ins))


@cache
def built(name: str, models: Path) -> ExperimentGraph:
    return build_graph(load_experiment(FOLDER / f"{name}.yaml", small_settings(name, models)))


def small_settings(name: str, models: Path) -> list[str]:
    """Of a file, for the small models and the made-up data."""
    text = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8")
    small = [f"backbone.source={models / 'bert'}"] if name != "figure3a" else []
    small += ["backbone.max_length=40", "seeds=[0]"]
    if name == "table10":
        small += [f"methods.{m}.nodes.backbone.max_length=16" for m in ("mixed6m", "stories260k")]
    named = ("small", "base", "large") if "x-e5-small" in text else ()
    for n, shared in enumerate((*(f"x-e5-{size}" for size in named), "x-node-model")):
        if f"{shared}:" in text:
            # Of different lengths, so that they are different models.
            small.append(f"{shared}={{source: {models / 'bert'}, max_length: {16 + n}}}")
    if "x-relevance:" in text:
        small.append("x-relevance={kind: none}")
    for task, sizes in {
        "CommonsenseQA": ["n_train=2"],
        "OpenBookQA": ["n_train=3"],
        "OpenBookQA with facts": ["n_train=3"],
        "OpenBookQA with the gold fact": ["n_train=3"],
        "WebNLG": ["n_train=8", "n_dev=4", "n_test=4"],
        "SciFact": ["n_dev_queries=1"],
    }.items():
        if f"  {task}:" in text:
            small += [f"tasks.{task}.{size}" for size in sizes]
    return small


@pytest.mark.parametrize("name", short(ROWS, "table5", "table4"))
def test_a_file_plans_and_has_the_papers_rows(name: str, stand_ins: Path, tmp_path: Path) -> None:
    nodes = built(name, stand_ins)
    experiment = nodes.experiment
    assert {*experiment.methods} == ROWS[name]
    assert len(nodes.fits) == sum(len(experiment.tasks_of(m)) for m in ROWS[name])
    preview = Preview(nodes.graph, tmp_path / "home", experiment.runtime)
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, preview)
    assert all(row.why.startswith("new: no earlier ") for row in plan.rows)
    assert plan.seconds is None, "nothing of the kind ran"
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert {*plan.graphs} == {*experiment.tasks}
    assert plan.n_tokens > 0
    assert not (tmp_path / "home").exists()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home") / "home"


@pytest.mark.deep
@pytest.mark.parametrize("name", [name for name in ROWS if "/" not in name])
def test_a_table_runs_through_to_its_report(name: str, stand_ins: Path, home: Path) -> None:
    few = ["x-optim.max_epochs=1", "x-optim.batch_size=2"]
    settings = [*small_settings(name, stand_ins), *few]
    result = run_serially(FOLDER / f"{name}.yaml", home, settings)
    nodes = build_graph(load_experiment(FOLDER / f"{name}.yaml", settings))
    scored = {(row["task"], row["method"]) for row in rows_of(result)}
    assert scored == {(task, method) for method, task, _ in nodes.fits}
    page = result.report.read_text(encoding="utf-8")
    assert all(f'aria-label="Errors on {task}"' in page for task in nodes.experiment.tasks)


def test_every_file_is_here_and_on_the_papers_page() -> None:
    page = (ROOT / "docs" / "papers" / "gt2vec.md").read_text(encoding="utf-8")
    for path in FOLDER.rglob("*.yaml"):
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        assert name in ROWS
        assert f"`{name}.yaml`" in page
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# GT2VEC")
        seeds = "[0]" if name.startswith(("figure", "table10")) else "[0, 1, 2]"
        assert f"\nseeds: {seeds}\n" in text
    assert len([*FOLDER.rglob("*.yaml")]) == len(ROWS)


EVERY_CONTROL = {"graphs", "node_features", "labels"}
"""Fields of which a control has the false ones."""
FEWER_CONTROLS = {
    # An upper bound: it asks what is left once the fact is given, and not what a graph adds.
    "table1_gold": {"labels"},
    # Fits of about an hour each; table 3, on the same pairs, has the others without LoRA.
    "table3_lora": {"graphs"},
}
"""What there is where not every control is, and why."""
WITHOUT_CONTROLS = {"OpenBookQA with facts"}
"""A column of table 1 whose controls would take hours; OpenBookQA without facts has them."""


@pytest.mark.parametrize("name", short(ROWS, "table1_gold", "paper/fiqa"))
def test_every_file_with_trained_rows_has_controls(name: str, stand_ins: Path) -> None:
    experiment = built(name, stand_ins).experiment
    assert any(method.is_random for method in experiment.methods.values())
    found: dict[str, set[str]] = {task: set() for task in experiment.tasks}
    for row, method in experiment.methods.items():
        fields = {f for f in EVERY_CONTROL if getattr(method, f, None) in ("shuffled", "random")}
        for task in experiment.tasks_of(row) if fields else ():
            assert method.role_on(experiment.tasks[task]) == "control"
            found[task] |= fields
    wanted = FEWER_CONTROLS.get(name, EVERY_CONTROL)
    assert found == {task: set() if task in WITHOUT_CONTROLS else wanted for task in found}


def test_fits_that_tables_share_are_one_node(stand_ins: Path) -> None:
    both = ("CommonsenseQA", "OpenBookQA")
    one = both[:1]
    for row, others, tasks in [
        (("table1", "GT2VEC LP"), [("table5", "GT2VEC LP"), ("table6", "GAT")], both),
        (("table1", "GT2VEC LP"), [("table9", "GT2VEC LP")], both),
        (("table1", "GT2VEC LP"), [("table10", "minilm")], one),
        (("table1", "GT2VEC LP"), [("figure3", "3 layers")], both),
        (("table1", "LM only"), [("table9", "without graph")], both),
        (("table3", "GT2VEC LP"), [("table3_lora", "GT2VEC LP")], ("WebNLG",)),
        *(
            (("table1", row), [(name, row) for name in ("table5", "table6", "table9")], both)
            for row in sorted(CONTROLS)
        ),
        *((("table1", row), [("figure3", row)], both) for row in sorted(CONTROLS)),
        (
            ("table1", "graph and text alone"),
            [(f"table{n}", "graph and text alone") for n in (5, 9)],
            both,
        ),
    ]:
        for file, method in others:
            for task in tasks:
                ids = {
                    built(name, stand_ins).fits[label, task, 0].id
                    for name, label in (row, (file, method))
                }
                assert len(ids) == 1, (file, method, task)


def test_no_other_fits_are_equal(stand_ins: Path) -> None:
    for name in ROWS:
        fits = built(name, stand_ins).fits
        assert len({node.id for node in fits.values()}) == len(fits), name


def test_what_has_to_be_brought_is_named(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = [f"backbone.source={stand_ins / 'bert'}", "backbone.max_length=40"]
    monkeypatch.setenv("PERMAFROST_DATA", str(stand_ins / "nowhere"))
    with pytest.raises(InputError, match=r"nowhere.umls.triples\.csv"):
        build_graph(load_experiment(FOLDER / "paper" / "medqa.yaml", small))
    monkeypatch.delenv("PERMAFROST_DATA")
    with pytest.raises(InputError, match="PERMAFROST_DATA, which is not set"):
        load_experiment(FOLDER / "paper" / "medqa.yaml")


SAME = {
    "LM only": "E5-Mistral LP",
    "without graph": "E5-Mistral LP",
    "LM LoRA": "E5-Mistral LoRA",
    "zero-shot": "E5-Mistral zero-shot",
    "GAT": "GT2VEC LP",
    "minilm": "GT2VEC LP",
    "3 layers": "GT2VEC LP",
}
"""What rows of small files are called in those at the paper's size."""
SAME_AT_5 = {"5 layers": "GT2VEC LP"}
"""In claims about OpenBookQA's depths, of which the paper uses another than on CommonsenseQA."""
OTHERS = {"mixed6m", "stories260k"}
"""In the place of the models that table 10 compares."""
OWN_SETS = {"paper/medqa", "paper/fiqa"}
"""Sets that no small file has."""
OWN_ROWS = {
    "table 1, CommonsenseQA: LoRA is above the linear probe",
    "table 1, OpenBookQA with facts: LoRA is above the linear probe",
}
"""Claims of fits that take too long in small."""


def _claims(name: str, models: Path) -> dict[str, dict[str, object]]:
    """By what they say: kind, gap or points, methods, and tasks, of which none are all."""
    experiment = built(name, models).experiment
    found: dict[str, dict[str, object]] = {}
    for claim in experiment.report.claims:
        assert not isinstance(claim, CurveClaim)
        named = {*claim.methods}
        is_deep = claim.says.startswith("figure 3b, OpenBookQA")
        same = SAME_AT_5 if is_deep else SAME
        methods = {same.get(m, m) for m in named - OTHERS}
        size = claim.points if isinstance(claim, Within) else claim.gap
        assert claim.says not in found, (name, claim.says)
        found[claim.says] = {
            "kind": claim.kind,
            "size": size,
            "methods": {m for m in methods if not m.startswith("nodes from ")},
            "tasks": {*(claim.tasks or experiment.tasks)},
        }
    return found


def test_small_files_claim_what_those_at_the_papers_size_claim(stand_ins: Path) -> None:
    """With the same gaps on the same tasks, so that a run of either is judged alike."""
    small: dict[str, dict[str, object]] = {}
    large: dict[str, dict[str, object]] = {}
    for name in ROWS:
        found = _claims(name, stand_ins)
        of_paper = {s: c for s, c in found.items() if s.startswith(("table", "figure"))}
        assert of_paper or name in ("table1_gold", "figure3a"), name
        if name not in OWN_SETS:
            (large if name.startswith("paper/") else small).update(of_paper)
        for says, claim in of_paper.items():
            assert claim["size"] is not None, (name, says)
        if name in ("table1_gold",) or name.startswith("paper/"):
            continue
        assert any(s.startswith("our control") for s in found), name
    assert {*large} - {*small} == OWN_ROWS
    assert {*small} - {*large} == set()
    for says, claim in small.items():
        assert claim == large[says], says


def test_depth_is_an_axis_on_which_the_controls_are_level(stand_ins: Path) -> None:
    report = built("figure3", stand_ins).report.config
    depths = {f"{n} layers": float(n) for n in range(3, 8)}
    assert [curve["values"] for curve in report["curves"]] == [depths]


def test_the_pages_command_trains_an_encoder_as_a_whole(stand_ins: Path) -> None:
    """The rows of RoBERTa-large and its like."""
    page = (ROOT / "docs" / "papers" / "gt2vec.md").read_text(encoding="utf-8")
    (shown,) = [block for block in page.split("```")[1::2] if "train: full" in block]
    words = shlex.split(shown)
    named = [word for before, word in pairwise(words) if before == "--set"]
    settings = [*named, *small_settings("paper/openbookqa", stand_ins)]
    nodes = build_graph(load_experiment(ROOT / words[2], settings))
    assert {row for row, _, _ in nodes.fits} == {"RoBERTa-large"}
    for node in nodes.fits.values():
        config: Any = node.config["finetune"]
        assert (config["train"], config["read"]) == ("full", "last")


def test_every_table_and_figure_is_on_the_papers_page() -> None:
    page = (ROOT / "docs" / "papers" / "gt2vec.md").read_text(encoding="utf-8")
    items = [*(f"table {n}" for n in range(1, 11)), "figure 1", "figure 2"]
    for item in (*items, "figure 3a", "figure 3b", "figure 3c"):
        assert f"\n| {item} |" in page, item
