"""A home, a store or an export that somebody else made is data: opening one runs no code that lies in it."""

import ast
import pickle
import shutil
import sys
from pathlib import Path

import pytest

import permafrost
from permafrost.storage.errors import PermafrostError

ROOT = Path(__file__).parents[2]
PROGRAM = "from pathlib import Path\nPath({marker!r}).write_text('ran')\n"


class Payload:
    """Leaves a mark when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (PROGRAM.format(marker=self.marker),)


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def trap(finished_home: Path, tmp_path: Path, marker: Path) -> Path:
    """A home with programs under every name that Python or a library might look for."""
    home = tmp_path / "home"
    shutil.copytree(finished_home, home)
    program = PROGRAM.format(marker=str(marker))
    folders = [home, *(p for p in home.rglob("*") if p.is_dir())]
    for folder in folders:
        for name in ("sitecustomize.py", "__init__.py", "my_head.py", "modeling.py"):
            (folder / name).write_text(program)
        for name in ("fit.pt", "pytorch_model.bin", "head.pkl"):
            (folder / name).write_bytes(pickle.dumps(Payload(marker)))
    return home


def test_the_trap_works(marker: Path) -> None:
    pickle.loads(pickle.dumps(Payload(marker)))
    assert marker.read_text() == "ran"


def test_a_home_is_read_and_nothing_in_it_runs(
    trap: Path, marker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trap)
    paths = list(sys.path)
    home = permafrost.open(trap)
    assert [run.experiment for run in home.runs()] == ["tiny"]
    assert home.results("tiny")["rows"]
    (store,) = home.stores()
    assert store.segments()
    fit = home.artifacts.refs("fit")[0]
    vectors = home.encoder(fit, device="cpu").encode(["a text"])
    assert vectors.shape[0] == 1
    assert sys.path == paths
    assert not marker.exists()


def test_a_pickle_in_the_place_of_weights_is_damage(trap: Path, marker: Path) -> None:
    home = permafrost.open(trap)
    for weights in trap.glob("artifacts/fit/*/*.safetensors"):
        weights.write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(PermafrostError, match=r"safetensors"):
        home.encoder(home.artifacts.refs("fit")[0], device="cpu")
    assert not marker.exists()


OF_A_SCHEDULER = "flows/engine/sent.py"
"""Unpickles what Dask hands to its function, as Dask itself would. Nothing of it is from a home."""


@pytest.mark.deep
def test_our_code_unpickles_nothing_and_trusts_no_code_of_others() -> None:
    for folder in ("flows", "stages", "storage"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                called = ast.unparse(node.func)
                given = {k.arg: ast.unparse(k.value) for k in node.keywords}
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                if not where.startswith(f"{OF_A_SCHEDULER}:"):
                    assert called not in ("pickle.load", "pickle.loads", "joblib.load"), where
                if called == "torch.load":
                    assert given.get("weights_only") == "True", where
                if called.endswith("from_pretrained"):
                    assert given.get("trust_remote_code", "False") == "False", where
                assert given.get("allow_pickle", "False") == "False", where
