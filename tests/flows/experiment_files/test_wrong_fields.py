"""Messages about wrong fields: the path as in the file, what there is instead, and nothing around it."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages import plugins
from permafrost.storage.errors import InputError
from tests.flows.conftest import tiny_experiment

FILES = "kind: files, files: {train: a.csv}"


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())


def refused(*overrides: str, **fields: Any) -> str:
    with pytest.raises(InputError) as caught:
        load_experiment(tiny_experiment(Path("tiny")) | fields, overrides)
    said = str(caught.value)
    assert "{'" not in said, "a dump"
    assert "Value error" not in said
    return said


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("methods.GLOT.head.tua=1", "methods.GLOT.head.tua: there is no such field; the nearest is 'tau'; "
         "there are kind, "),
        ("methods.GLOT.optim.lrr=1",
         "methods.GLOT.optim.lrr: there is no such field; the nearest is 'lr'; "),
        ("methods.GLOT.head.tua=null", "methods.GLOT.head.tua: there is no such field"),
        ("metods={}", "metods: there is no such field; the nearest is 'methods'; there are plugins, name, "),
        ("methods.GLOT.head.kind=glott",
         "methods.GLOT.head.kind is 'glott', which is unknown; the nearest is "
         "'glot'; there are adapool, "),
        ("methods.GLOT.head={tau: 1}", "methods.GLOT.head: kind has to be given; there are adapool, "),
        ("methods.GLOT.head=glot",
         "methods.GLOT.head: expected fields such as 'kind: glot' (given: 'glot')"),
        ("methods.GLOT.head=3", "methods.GLOT.head: expected fields such as 'kind: adapool' (given: 3)"),
        ("seeds=[]", "seeds: expected a list of at least 1 (given: [])"),
        ("seeds=[a]", "seeds.0: expected a whole number (given: 'a')"),
        ("methods.GLOT.head.tau=high", "methods.GLOT.head.tau: expected a number (given: 'high')"),
        (f"tasks.f={{{FILES}, task: {{kind: classification, txt: a}}}}",
         "tasks.f.task.txt: there is no such field; the nearest is 'text'; there are text, kind, label"),
        (f"tasks.f={{{FILES}, task: {{kind: classifier}}}}",
         "tasks.f.task.kind is 'classifier', which is unknown; the nearest is 'classification'"),
        (f"tasks.f={{{FILES}, task: {{kind: classification}}, dev: {{kind: from_train, fracton: 0.1}}}}",
         "tasks.f.dev.fracton: there is no such field; the nearest is 'fraction'"),
        ("tasks.f={kind: files, task: {kind: unlabelled}}", "tasks.f.files: this field has to be given"),
        ("report.x_axis={kind: curve, label: x, vals: {}}",
         "report.x_axis.vals: there is no such field; the nearest is 'values'"),
        ("evaluations.e={tasks: {t: {kind: local, type: stss}}}",
         "evaluations.e.tasks.t.type is 'stss', which is unknown; the nearest is 'sts'"),
        ("methods.GLOT.optim.lr={a: 1}", "methods.GLOT.optim.lr: "),
        # The kind may be left out of these.
        ("report.claims=[{higher: GLOT, lower: [mean]}]",
         "report.claims.0.says: this field has to be given"),
        ("report.claims=[{says: x, higher: GLOT, lowr: [mean]}]",
         "report.claims.0.lower: this field has to be given"),
        ("report.claims=[{says: x, higher: GLOT, lower: [mean], ovr: x}]",
         "report.claims.0.ovr: there is no such field; the nearest is 'over'; there are kind, says, higher"),
        ("probes={p: {methods: {}}}", "probes.p.tasks: this field has to be given"),
        ("probes={p: {tasks: [t], metods: {}}}",
         "probes.p.metods: there is no such field; the nearest is 'methods'; there are kind, tasks, "),
        # Nothing may stand there at all.
        ("methods.GLOT.loss={temperature: 1}",
         "methods.GLOT.loss: kind has to be given; there are contrastive, "),
        (
            "runtime.worker_memory_bytes=400000000",
            "runtime.worker_memory_bytes: a worker of Dask needs more than that before it computes anything; "
            "give 600000000 or more, or 0",
        ),
        ("runtime.workers=-1", "runtime.workers: Input should be greater than or equal to 0 (given: -1)"),
        ("methods.GLOT.layer=[1]", "methods.GLOT.layer: "),
        ("seeds=[-1]", "seeds.0: Input should be greater than or equal to 0 (given: -1)"),
        ("methods.GLOT.tasks=[]", "methods.GLOT.tasks is empty, so that it is scored on no task"),
        ("seeds=3", "seeds: expected a list, such as [3] (given: 3)"),
        ("seeds=[0,1,0]", "seeds: seed 0 is given more than once; give each once"),
        ("name=a/b", "name: a name has lower-case letters, digits and hyphens, and begins with a "),
        ("optim.lr=1", "optim: there is no such field; there are plugins, name, "),
        ("methods.GLOT.grid.layr=[1]",
         "methods.GLOT: grid names the field 'layr', which a fit does not have; the nearest is 'layer'; "),
        ("capture=hiden=1",
         "capture: cannot capture 'hiden' (in 'hiden=1'); possible are hidden, values, attention_rows"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_named_as_in_the_file(override: str, says: str) -> None:
    said = refused(override)
    assert f"\n  {says}" in said
    assert f" {said.count(chr(10))} wrong field(s):" in said


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("methods.GLOT.optim.max_epochs=true",
         "methods.GLOT.optim.max_epochs: expected a number (given: true)"),
        ("methods.GLOT.head.tau=true", "methods.GLOT.head.tau: expected a number (given: true)"),
        ("methods.shuffled.optim.lr=true", "methods.shuffled.optim.lr: expected a number (given: true)"),
        ("seeds=[false, 2]", "seeds.0: expected a number (given: false)"),
        ("runtime.workers=true", "runtime.workers: expected a number (given: true)"),
        ("tasks.ratio 0.2.gap=true", "tasks.ratio 0.2.gap: expected a number (given: true)"),
    ],
)  # fmt: skip
def test_true_and_false_are_no_numbers(override: str, says: str) -> None:
    assert f"has 1 wrong field(s):\n  {says}" in refused(override)


def test_what_is_wrong_between_fields_is_told_without_them() -> None:
    said = refused("metrics={nowhere: accuracy}")
    assert said.endswith(
        ":\n  metrics.nowhere names the task 'nowhere'; there are ratio 0.2, ratio 0.5"
    )


def test_claims_are_about_methods_of_the_experiment() -> None:
    said = refused("report.claims=[{says: c, higher: GLOT, lower: [means]}]")
    assert "report.claims.0 names the method 'means'; there are mean, GLOT" in said


def test_a_wrong_field_of_a_plug_in_is_named_too(tmp_path: Path) -> None:
    from tests.flows.test_plugins import HEAD

    plugin = tmp_path / "my_head.py"
    plugin.write_text(HEAD)
    said = refused("methods.GLOT.head={kind: scaled_mean, scal: 1}", plugins=[str(plugin)])
    assert (
        "methods.GLOT.head.scal: there is no such field; the nearest is 'scale'; there are kind, scale"
        in said
    )


def test_a_plug_in_that_cannot_be_loaded_is_told_alone(tmp_path: Path) -> None:
    from tests.flows.test_plugins import HEAD

    plugin = tmp_path / "my_head.py"
    plugin.write_text(f"{HEAD}\n1 / 0\n")
    said = refused("methods.GLOT.head={kind: scaled_mean}", plugins=[str(plugin)])
    assert "has 1 wrong field(s):\n  plugins: the plug-in" in said
    assert "ZeroDivisionError" in said
    assert said.endswith(
        "\n  the other fields are checked once the plug-ins are loaded, as they may use their kinds"
    )
    assert "unknown" not in said


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("methods.GLOTT.head.tau=1",
         "there is no methods.GLOTT; the nearest is 'GLOT'; there are mean, GLOT, "),
        ("tasks.ration.n_test=1",
         "there is no tasks.ration; the nearest is 'ratio 0.5'; there are ratio 0.2, "),
        ("probes.p.kind=x", "there is no probes.p; there are none"),
        ("evaluations.e.tasks.t.type=sts", "there is no evaluations.e; there are none"),
    ],
)  # fmt: skip
def test_an_override_inside_what_does_not_exist_says_so(override: str, says: str) -> None:
    said = refused(override)
    assert said.startswith(f"--set '{override}': {says}")
    assert "a new one is given whole" in said
    assert "by a name without dots" in said


@pytest.mark.parametrize("override", ["tasks.2020.files.train=a", "tasks.2021.files.train=a"])
def test_a_name_that_is_a_number_in_the_file_says_so(override: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("tasks: {2020: {kind: files}}\nmethods: {}\n")
    with pytest.raises(InputError) as raised:
        load_experiment(tmp_path / "a.yaml", [override])
    is_there = "tasks.2020 is no text in the file, and names are; write '2020', with quotation"
    assert (is_there if "2020" in override else "there is no tasks.2021; ") in str(raised.value)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["methods.GLOT.layer=hidden/2"],
         "--set 'methods.GLOT.layer=hidden/2' would change nothing, as methods.GLOT.grid tries layer "
         "['hidden/1', 'hidden/2'] in its place; set methods.GLOT.grid.layer=[VALUE, ...] instead"),
        (["methods.GLOT.grid={head.tau: [0.1]}", "methods.GLOT.head.tau=0.2"],
         "--set 'methods.GLOT.head.tau=0.2' would change nothing, as methods.GLOT.grid tries head.tau [0.1]"),
        (["methods.GLOT.grid={head.tau: [0.1]}", "methods.GLOT.head={kind: glot, tau: 0.2}"],
         "--set 'methods.GLOT.head={kind: glot, tau: 0.2}' sets methods.GLOT.head.tau, in whose place "
         "methods.GLOT.grid tries [0.1]; set the other fields one by one, or methods.GLOT.grid={} as well"),
    ],
)  # fmt: skip
def test_what_a_grid_tries_cannot_be_set_beside_it(overrides: list[str], says: str) -> None:
    with pytest.raises(InputError) as raised:
        load_experiment(tiny_experiment(Path("tiny")), overrides)
    assert str(raised.value).startswith(says)


def test_a_grid_s_field_is_set_by_its_dotted_name_and_a_grid_without_fields_tries_nothing() -> None:
    tiny = tiny_experiment(Path("tiny"))
    tried = ["methods.GLOT.grid={head.tau: [0.1]}", "methods.GLOT.grid.head.tau=[0.3, 0.5]"]
    assert load_experiment(tiny, tried).model_dump()["methods"]["GLOT"]["grid"] == {
        "head.tau": (0.3, 0.5)
    }
    others = load_experiment(tiny, [tried[0], "methods.GLOT.head={kind: glot}"])
    assert others.model_dump()["methods"]["GLOT"]["grid"] == {"head.tau": (0.1,)}
    alone = load_experiment(tiny, ["methods.GLOT.grid={}", "methods.GLOT.layer=hidden/2"])
    assert alone.model_dump()["methods"]["GLOT"]["layer"] == "hidden/2"


def test_a_name_with_an_equals_sign_is_set_as_any_other() -> None:
    tiny = tiny_experiment(Path("tiny"))
    tiny["methods"] = {**tiny["methods"], "tau=0.3 a.b=c": tiny["methods"]["GLOT"]}
    grid = "methods.tau=0.3 a.b=c.grid={layer: [hidden/1, hidden/2]}"
    field, title = "methods.tau=0.3 a.b=c.optim.lr=0.5", "report.title=lr=0.5"
    made = load_experiment(tiny, [grid, field, title, "methods.tau=0.3 a.b=c.labels=shuffled"])
    method = made.methods["tau=0.3 a.b=c"].model_dump()
    assert (method["optim"]["lr"], method["labels"]) == (0.5, "shuffled")
    assert made.report.title == "lr=0.5"
    assert made.methods.keys() == tiny["methods"].keys()
    with pytest.raises(InputError, match="would change nothing"):
        load_experiment(tiny, [grid, "methods.tau=0.3 a.b=c.layer=hidden/1"])
    with pytest.raises(InputError, match="there is no methods"):
        load_experiment(tiny, ["methods.tau.optim.lr=0.3=a"])


def test_an_override_may_add_a_whole_entry_and_fields_that_were_left_out() -> None:
    method = "methods.new={kind: head, head: {kind: mean}, layer: hidden/1}"
    made = load_experiment(
        tiny_experiment(Path("tiny")), [method, "methods.new.optim.lr=0.5", "runtime.threads=2"]
    )
    assert made.methods["new"].model_dump()["optim"]["lr"] == 0.5
    assert made.runtime.threads == 2


def test_the_report_may_be_left_out_and_is_named_after_the_experiment() -> None:
    tiny = tiny_experiment(Path("tiny"))
    given = tiny.pop("report")
    assert load_experiment(tiny).report.title == "tiny"
    assert load_experiment(tiny, ["report.n_errors=1"]).report.title == "tiny"
    assert load_experiment({**tiny, "report": given}).report.title == given["title"]
