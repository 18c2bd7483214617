"""A probe and a method in a file of a user: one file each, and editing it runs its own nodes again."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from permafrost.flows.evaluations import Evaluation
from permafrost.flows.pipeline import run_serially
from permafrost.stages import plugins
from permafrost.stages.kinds import use_plugins
from permafrost.storage.errors import InputError
from tests.flows.conftest import tiny_experiment
from tests.flows.experiments import pairs, rows_of, write
from tests.flows.looked import Looked, look

PROBE = '''
from typing import Literal

import numpy as np
from pydantic import BaseModel

from permafrost.flows.methods.probes.probe import ANY_TASK, FeatureProbe
from permafrost.stages.probes import Point, ProbeCurves


class Curve(BaseModel):
    scale: float = 1.0

    def arrays(self, sizes):
        return ("pooled/hidden_mean/1", "pooled/hidden_mean/2")


class NormProbe(FeatureProbe):
    """Mean length of the vectors of two layers."""

    task_kinds = ANY_TASK
    caption = "How long vectors are."

    kind: Literal["norm"] = "norm"
    methods: dict[str, Curve]

    def measure(self, config, members, corpus, progress):
        points = []
        for x, array in enumerate(config.arrays(members[0].sizes), 1):
            rows = next(members[0].reader(array, "all").in_order(1000))[1].data
            value = config.scale * float(np.linalg.norm(rows, axis=1).mean())
            points.append(Point("mean length", "number", float(x), str(x), value))
        return ProbeCurves("layer", tuple(points))
'''
METHOD = '''
from typing import Literal

import numpy as np

from permafrost.flows.graph import Node
from permafrost.flows.methods.method import CLASSES, Method
from permafrost.flows.stage import Stage
from permafrost.stages.scoring.controls import LengthControl, run_control


class Coin(Method):
    """Asks the length control; for a plug-in, whatever it likes."""

    kind: Literal["coin"] = "coin"

    @property
    def task_kinds(self):
        return CLASSES

    def fit_nodes(self, cell):
        return (ThrowCoin.node(f"coin {cell.method} · {cell.task}", {"side": 1}, (cell.corpus,)),)


class ThrowCoin(Stage):
    name = "coin"

    @classmethod
    def run(cls, node, context, draft, progress):
        run_control(LengthControl(), context.corpus(node.input("corpus"))).save(draft.folder)
'''


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    yield
    for name in [n for n in sys.modules if n.startswith(plugins.PREFIX)]:
        del sys.modules[name]


def content(backbone: Path, *files: Path) -> dict[str, Any]:
    tiny = tiny_experiment(backbone)
    task = "ratio 0.2"
    return tiny | {
        "plugins": [str(file) for file in files],
        "tasks": {task: tiny["tasks"][task]},
        "methods": {"mine": {"kind": "coin"}, "words": {"kind": "bag_of_words"}},
        "probes": {
            "lengths": {"kind": "norm", "tasks": [task], "methods": {"norm": {"scale": 2.0}}},
            "shape": {"kind": "geometry", "tasks": [task], "methods": {"all": {"layers": "1"}}},
        },
        "seeds": [0],
        "report": {"title": "Mine", "x_axis": {"kind": "tasks"}},
    }


def to_run(looked: Looked) -> set[str]:
    waiting = {n.label for n in looked.nodes.graph if not looked.artifacts.is_done(n.ref)}
    return waiting - {looked.nodes.report.label}


@pytest.mark.deep
def test_a_probe_and_a_method_in_files_join_the_run_and_the_report(
    tiny_bert: Path, tmp_path: Path
) -> None:
    probe, method = tmp_path / "norms.py", tmp_path / "coin.py"
    probe.write_text(PROBE)
    method.write_text(METHOD)
    path = write(tmp_path / "e.yaml", content(tiny_bert, probe, method))
    home = tmp_path / "home"
    result = run_serially(path, home)
    assert {row["method"] for row in rows_of(result)} == {"mine", "words"}
    assert "How long vectors are." in result.report.read_text()
    rows = pq.read_table(result.report.with_name("probes.parquet")).to_pylist()
    assert {row["measure"] for row in rows if row["kind"] == "norm"} == {"mean length"}
    assert to_run(look(path, home)) == set()

    probe.write_text(PROBE.replace("config.scale *", "1 + config.scale *"))
    assert to_run(look(path, home)) == {"probe norm · ratio 0.2"}
    probe.write_text(PROBE)
    method.write_text(
        METHOD.replace("run_control(LengthControl()", "run_control(LengthControl(c=(2.0,))")
    )
    assert to_run(look(path, home)) == {"coin mine · ratio 0.2"}


AGGREGATION = '''
from typing import Literal

import numpy as np

from permafrost.stages.embed.aggregations.aggregation import PooledRows


class Spread(PooledRows):
    """Highest less lowest, in each place."""

    kind: Literal["spread"] = "spread"

    def pool(self, rows):
        return np.stack([row.max(axis=0) - row.min(axis=0) for row in rows])
'''


def test_an_aggregation_in_a_file_is_embedded_with_and_its_edit_changes_its_own_keys(
    tiny_bert: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "spread.py"
    plugin.write_text(AGGREGATION)
    files = {s: str(pairs(tmp_path / f"{s}.parquet", 12, i)) for i, s in enumerate(("dev", "test"))}
    graded = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    path = write(
        tmp_path / "e.yaml",
        {
            "name": "spread",
            "plugins": [str(plugin)],
            "backbone": {"source": str(tiny_bert)},
            "tasks": {"pairs": {"kind": "files", "files": files, "task": graded}},
            "methods": {
                "mine": {"kind": "embed", "method": "spread"},
                "mean": {"kind": "embed", "method": "mean"},
            },
            "report": {"title": "Mine", "x_axis": {"kind": "tasks"}},
            "runtime": {"workers": 1, "extract": {"device": "cpu"}},
        },
    )
    home = tmp_path / "home"
    assert {row["method"] for row in rows_of(run_serially(path, home))} == {"mine", "mean"}
    configs = [n.config["method"] for n in look(path, home).nodes.graph if n.stage == "embed"]
    assert configs == ["spread", "mean"], "written as it was given"
    assert to_run(look(path, home)) == set()
    plugin.write_text(AGGREGATION.replace("row.max(axis=0) -", "2 * row.max(axis=0) -"))
    assert to_run(look(path, home)) == {"embed mine · pairs", "score mine · pairs"}


LOCAL_TASK = '''
from typing import Any, ClassVar, Literal

from permafrost.stages.mteb_evaluation.local_data import LocalData
from permafrost.stages.mteb_evaluation.task import LocalTask


class LengthTask(LocalTask):
    """Pairs whose grade is how near their lengths are; one file with a pair a line."""

    mteb_category: ClassVar[str] = "STS"
    default_score: ClassVar[str] = "cosine_spearman"
    scores: ClassVar[tuple[str, ...]] = ("cosine_spearman", "cosine_pearson")

    type: Literal["lengths"] = "lengths"

    @property
    def stems(self):
        return {"pairs": "test"}

    def read(self):
        import pyarrow.parquet as pq
        rows = pq.read_table(self.file("pairs")).to_pydict()
        pairs = list(zip(rows["a"], rows["b"]))
        grades = [-abs(len(a) - len(b)) for a, b in pairs]
        return LocalData({"test": {"sentence1": rows["a"], "sentence2": rows["b"], "score": grades}})

    def asked_texts(self, data):
        return {"text": [*data.tables["test"]["sentence1"], *data.tables["test"]["sentence2"]]}

    def mteb_class(self):
        from mteb.abstasks import AbsTaskSTS

        return AbsTaskSTS
'''


@pytest.mark.deep
def test_a_local_task_in_a_file_is_evaluated_and_its_edit_runs_its_own_nodes(
    tiny_bert: Path, tmp_path: Path
) -> None:
    plugin = tmp_path / "lengths.py"
    plugin.write_text(LOCAL_TASK)
    pairs(tmp_path / "test.parquet", 12, 0)
    columns = {"text": "a", "text_pair": "b", "label": "score"}
    local = {"kind": "local", "path": str(tmp_path)}
    path = write(
        tmp_path / "e.yaml",
        {
            "name": "lengths",
            "plugins": [str(plugin)],
            "backbone": {"source": str(tiny_bert)},
            "methods": {"mean": {"kind": "embed", "method": "mean", "layers": "1"}},
            "evaluations": {
                "local": {
                    "tasks": {
                        "near": local | {"type": "lengths"},
                        "graded": local | {"type": "sts"} | columns,
                    }
                }
            },
            "report": {"title": "Mine"},
            "runtime": {"workers": 1, "extract": {"device": "cpu"}},
        },
    )
    home = tmp_path / "home"
    rows = {row["task"]: row for row in rows_of(run_serially(path, home))}
    assert rows.keys() == {"near", "graded"}
    assert rows["near"]["metric"] == "cosine_spearman"
    assert rows["near"]["test"] != rows["graded"]["test"]
    assert to_run(look(path, home)) == set()
    plugin.write_text(LOCAL_TASK.replace("-abs(len(a) - len(b))", "abs(len(a) - len(b))"))
    corpus = "corpus near · text of evaluation"
    assert to_run(look(path, home)) >= {corpus, "evaluate mean · near"}
    assert not {label for label in to_run(look(path, home)) if "graded" in label}
    again = {row["task"]: row for row in rows_of(run_serially(path, home))}
    assert again["near"]["test"] == pytest.approx(-rows["near"]["test"])
    assert again["graded"]["test"] == rows["graded"]["test"]


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ({"kind": "local", "path": "x"}, "discriminator 'type'"),
        ({"kind": "local", "type": "lengths"}, "'lengths' found using 'type' .*'retrieval'"),
        ({"kind": "beir"}, "'beir' found using 'kind' .*'mteb', 'local'"),
        ({"name": "STS12"}, "discriminator 'kind'"),
    ],
)
def test_a_task_of_no_known_kind_or_type_is_told_the_known_ones(
    task: dict[str, str], told: str
) -> None:
    with pytest.raises(ValidationError, match=told):
        Evaluation.model_validate({"tasks": {"mine": task}})


def test_a_kind_of_task_cannot_take_the_name_of_all_local_ones(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "from typing import Literal\n"
        "from permafrost.stages.mteb_evaluation.tasks.hub import HubTask\n"
        "class Mine(HubTask):\n    kind: Literal['local'] = 'local'\n"
    )
    with pytest.raises(
        InputError, match=r"LocalTask and .*Mine .*another name in its field 'kind'"
    ):
        use_plugins([path])
