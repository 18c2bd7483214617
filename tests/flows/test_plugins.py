"""A kind in a file of a user joins the experiment, its keys and its report; keys are as fine as the code."""

import ast
import importlib
import inspect
import pkgutil
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import permafrost
from permafrost import flows
from permafrost.flows import methods, nodes
from permafrost.flows.experiment import Experiment
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.evaluated import EvaluatedMethod
from permafrost.flows.methods.method import METHODS
from permafrost.flows.methods.probes.probe import PROBES
from permafrost.flows.pipeline import run_serially
from permafrost.flows.stage import PACKAGES, Stage
from permafrost.stages import plugins
from permafrost.stages.kinds import Category, all_categories
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import fingerprint
from tests.documents import snippet
from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import rows_of, write
from tests.flows.looked import Looked, look
from tests.flows.test_cli import Cli

pytestmark = pytest.mark.deep

HEAD = snippet("a head of your own")
WORKER = """
import sys
from pathlib import Path
from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.engine import make
from permafrost.flows.graph import Node
from permafrost.storage.progress import SilentProgress
node = Node.model_validate_json(Path(sys.argv[2]).read_text())
make(node, RunContext(Path(sys.argv[1]), RunRuntime(device="cpu")), SilentProgress())
"""


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    yield
    for name in [n for n in sys.modules if n.startswith(plugins.PREFIX)]:
        del sys.modules[name]


def content(backbone: Path, plugin: Path) -> dict[str, Any]:
    tiny = tiny_experiment(backbone)
    optim = {"lr": 0.01, "batch_size": 8, "max_epochs": 2}
    common = {"kind": "head", "layer": "hidden/2", "optim": optim}
    return tiny | {
        "plugins": [str(plugin)],
        "tasks": {"ratio 0.2": tiny["tasks"]["ratio 0.2"]},
        "methods": {
            "mine": common | {"head": {"kind": "scaled_mean"}},
            "mean": common | {"head": {"kind": "mean"}},
        },
        "seeds": [0],
        "report": {"title": "Mine", "x_axis": {"kind": "tasks"}},
    }


def to_run(looked: Looked) -> set[str]:
    return {n.label for n in looked.nodes.graph if not looked.artifacts.is_done(n.ref)}


def test_a_head_in_a_file_is_trained_found_again_and_trained_again_after_an_edit(
    tiny_bert: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "my_head.py"
    plugin.write_text(HEAD)
    path, home = write(tmp_path / "e.yaml", content(tiny_bert, plugin)), tmp_path / "home"
    rows = rows_of(run_serially(path, home))
    assert {row["method"] for row in rows} == {"mine", "mean"}
    assert to_run(look(path, home)) == set()

    # Moved, and with another comment: the same code.
    (tmp_path / "elsewhere").mkdir()
    moved = Path(shutil.move(plugin, tmp_path / "elsewhere" / "my_head.py"))
    moved.write_text("# as before\n" + HEAD)
    write(path, content(tiny_bert, moved))
    assert to_run(look(path, home)) == set()

    moved.write_text(HEAD.replace("* self.scale", "+ self.scale"))
    edited = look(path, home)
    own = {"fit mine · ratio 0.2 · seed 0", "score mine · ratio 0.2 · seed 0"}
    assert to_run(edited) - {edited.nodes.report.label} == own


def test_a_head_that_gives_another_width_than_it_says_is_named(
    tiny_bert: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "my_head.py"
    plugin.write_text(HEAD.replace("linear(d_in, d_in,", "linear(d_in, 5,"))
    path, home = write(tmp_path / "e.yaml", content(tiny_bert, plugin)), tmp_path / "home"
    with pytest.raises(
        InputError, match=r"ScaledMeanPooling gave vectors of shape \[8, 5\] .* its d_out is 32"
    ):
        run_serially(path, home)


@pytest.mark.deep
def test_a_worker_without_the_file_runs_its_nodes(tiny_bert: Path, tmp_path: Path) -> None:
    plugin = tmp_path / "my_head.py"
    plugin.write_text(HEAD)
    path, home = write(tmp_path / "e.yaml", content(tiny_bert, plugin)), tmp_path / "home"
    run_serially(path, home)
    plugin.write_text(HEAD.replace("* self.scale", "+ self.scale"))
    edited = look(path, home)
    plugin.unlink()
    for stage in ("fit", "score"):
        (node,) = [n for n in edited.nodes.graph if n.label.startswith(f"{stage} mine")]
        (tmp_path / "node.json").write_text(node.model_dump_json())
        arguments = [str(home), str(tmp_path / "node.json")]
        subprocess.run([sys.executable, "-c", WORKER, *arguments], check=True, cwd=Path.cwd())
        assert edited.artifacts.is_done(node.ref)


def test_commands_take_a_head_of_a_plugin_once_its_file_is_named(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin, cli = tmp_path / "my_head.py", Cli(tmp_path / "home", capsys)
    plugin.write_text(HEAD)
    path = write(tmp_path / "e.yaml", content(tiny_bert, plugin))
    run_serially(path, cli.home)
    (fit,) = [n.id for n in look(path, cli.home).nodes.graph if n.label.startswith("fit mine")]
    texts, out = tmp_path / "texts.txt", tmp_path / "out.parquet"
    texts.write_text("snow melts\nthe deep lake\n")
    commands = {
        "embed": ("embed", str(texts), "--head", fit, "-o", str(out)),
        "export": ("export", fit, "-o", str(tmp_path / "exported"), "--device", "cpu"),
    }
    plugins.use_files([])
    for command in commands.values():
        told = cli(*command, code=2)
        assert "needs the kind 'scaled_mean' (head), which is not known here" in told
        assert "name its file: --plugins my_head.py" in told
        assert not out.exists()
    for command in commands.values():
        plugins.use_files([])
        cli(*command, "--plugins", str(plugin))
    written = pq.read_table(out).column("embedding").to_pylist()
    exported = permafrost.load_exported(tmp_path / "exported", device="cpu")
    np.testing.assert_allclose(exported.encode(texts.read_text().splitlines()), written, rtol=1e-4)
    plugin.write_text(HEAD.replace("* self.scale", "+ self.scale"))
    told = cli(*commands["embed"], "--plugins", str(plugin), code=2)
    assert "was trained with other code of permafrost_plugins.my_head:ScaledMeanPooling" in told
    with pytest.raises(InputError, match=r"exported to .*, was trained with other code of "):
        permafrost.load_exported(tmp_path / "exported")


def test_a_file_that_is_imported_and_registered_is_the_one_that_was_named(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    monkeypatch.syspath_prepend(tmp_path)
    plugin, home = tmp_path / "my_head.py", tmp_path / "home"
    plugin.write_text(HEAD)
    path = write(tmp_path / "e.yaml", content(tiny_bert, plugin))
    run_serially(path, home)
    (fit,) = [n.id for n in look(path, home).nodes.graph if n.label.startswith("fit mine")]
    named = permafrost.encode(["snow melts"], head=fit, home=home)
    plugins.use_files([])
    module = importlib.import_module("my_head")
    permafrost.register(module.ScaledMean)
    np.testing.assert_array_equal(permafrost.encode(["snow melts"], head=fit, home=home), named)
    plugin.write_text(HEAD.replace("* self.scale", "+ self.scale"))
    permafrost.register(importlib.reload(module).ScaledMean)
    with pytest.raises(InputError, match=r"was trained with other code of .*:ScaledMeanPooling"):
        permafrost.encode(["snow melts"], head=fit, home=home)
    other = tmp_path / "other_head.py"
    other.write_text(HEAD)
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    plugins.use_files([other])
    with pytest.raises(
        InputError, match=r"the plug-in permafrost_plugins.my_head, of which nothing"
    ):
        permafrost.encode(["snow melts"], head=fit, home=home)
    monkeypatch.delitem(sys.modules, "my_head")


def test_an_edited_module_beside_a_plugin_trains_again_once_it_is_reloaded_and_is_refused_before(
    tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, as in a notebook."""
    monkeypatch.syspath_prepend(tmp_path)
    helper, plugin, home = tmp_path / "my_factor.py", tmp_path / "my_head.py", tmp_path / "home"
    helper.write_text("def factor():\n    return 2.0\n")
    plugin.write_text(f"import my_factor\n{HEAD}".replace("self.scale\n", "my_factor.factor()\n"))
    path = write(tmp_path / "e.yaml", content(tiny_bert, plugin))
    run_serially(path, home)
    (fit,) = [n.id for n in look(path, home).nodes.graph if n.label.startswith("fit mine")]
    helper.write_text("def factor():\n    return 0.001\n")
    told = r"my_factor\.py was changed after this process had loaded it"
    with pytest.raises(InputError, match=told):
        look(path, home)
    plugins.use_sources({"permafrost_plugins.my_head": plugin.read_text()})
    with pytest.raises(InputError, match=told):
        permafrost.encode(["snow melts"], head=fit, home=home)
    importlib.reload(sys.modules["my_factor"])
    with pytest.raises(InputError, match=r"was trained with other code of my_factor:factor"):
        permafrost.encode(["snow melts"], head=fit, home=home)
    edited = look(path, home)
    own = {"fit mine · ratio 0.2 · seed 0", "score mine · ratio 0.2 · seed 0"}
    assert to_run(edited) - {edited.nodes.report.label} == own
    monkeypatch.delitem(sys.modules, "my_factor")


def test_nodes_carry_the_plugins_of_what_they_read_and_no_others(
    tiny_bert: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "my_head.py"
    plugin.write_text(HEAD)
    path = write(tmp_path / "e.yaml", content(tiny_bert, plugin))
    nodes = look(path, tmp_path / "home").nodes
    carrying = {n.label.split(" · ")[0]: n.plugins for n in nodes.graph if n.plugins}
    assert carrying.keys() == {"fit mine", "score mine", nodes.report.label}
    assert all(held == {"permafrost_plugins.my_head": HEAD} for held in carrying.values())


def test_a_plugin_that_cannot_be_read_is_a_wrong_field(tmp_path: Path, tiny_bert: Path) -> None:
    fields = content(tiny_bert, tmp_path / "missing.py")
    with pytest.raises(ValueError, match=r"plugins\n.*missing\.py' cannot be read"):
        Experiment.model_validate(fields)


def stages() -> list[type[Stage]]:
    rooms = (methods, nodes)
    for room in rooms:
        for module in pkgutil.walk_packages(room.__path__, f"{room.__name__}."):
            importlib.import_module(module.name)
    found, queue = list[type[Stage]](), list(Stage.__subclasses__())
    while queue:
        cls = queue.pop()
        queue += cls.__subclasses__()
        found += [cls] if cls.__module__.startswith(tuple(r.__name__ for r in rooms)) else []
    return found


@pytest.mark.few(12)
@pytest.mark.parametrize("stage", stages(), ids=lambda stage: stage.__name__)
def test_a_stage_depends_on_no_kind_that_was_not_chosen(stage: type[Stage]) -> None:
    kinds = {
        f"{cls.__module__}:{cls.__name__}"
        for category in all_categories()
        for cls in category.kinds().values()
    }
    assert kinds
    reached = set(fingerprint(stage, PACKAGES).definitions)
    assert reached & kinds == set(), "its key would change with the code of a kind it does not use"


def test_the_room_of_methods_holds_kinds_their_base_classes_and_the_cell_that_they_are_given() -> (
    None
):
    def kinds_of(category: Category[Any]) -> set[str]:
        return {cls.__module__ for cls in (category.base, *category.kinds().values())}

    walked = pkgutil.walk_packages(methods.__path__, f"{methods.__name__}.")
    modules = {module.name for module in walked if not module.ispkg}
    shared = {EvaluatedMethod.__module__, Cell.__module__}
    assert modules == kinds_of(METHODS) | kinds_of(PROBES) | shared


def test_no_code_of_the_flows_tells_kinds_apart_by_their_classes() -> None:
    """What differs between kinds is a method of theirs, or a plug-in could not have it."""
    asked = set[str]()
    for found in pkgutil.walk_packages(flows.__path__, f"{flows.__name__}."):
        module = importlib.import_module(found.name)
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
                names = {n.id for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
                classes = (getattr(module, name, None) for name in names)
                asked |= {c.__qualname__ for c in classes if isinstance(c, type) and _is_ours(c)}
    assert asked == {"Home", "Merging"}, "no kinds"


def _is_ours(cls: type) -> bool:
    return cls.__module__.startswith("permafrost.") and not issubclass(cls, Exception)
