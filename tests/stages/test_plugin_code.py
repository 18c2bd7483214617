"""Code that plug-ins bring along counts in keys, and that of installed packages does not."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from permafrost.stages import plugins
from permafrost.storage.fingerprint import fingerprint

SOURCE = """
import json
import numpy as np
from mylib_beside.layers import act


class Mine:
    def run(self, x):
        return act(np.abs(x)), json
"""


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package in a folder on the path, of which no installer knows."""
    folder = tmp_path / "mylib_beside"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "layers.py").write_text("def act(x):\n    return x + 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    known = plugins._PLUGINS
    before = dict(known.loaded), known.in_use, dict(known.registered)
    yield folder
    known.loaded, known.in_use, known.registered = before
    for name in [n for n in sys.modules if n.startswith("mylib_beside")]:
        del sys.modules[name]


def test_a_package_beside_a_plugin_file_counts(beside: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine_beside.py"
    path.write_text(SOURCE)
    plugins.use_files([path])
    assert "mylib_beside" in plugins.packages()
    assert not {"json", "numpy"} & {*plugins.packages()}
    (plugin,) = plugins.in_use()
    found = fingerprint(vars(plugin.module)["Mine"], plugins.packages()).definitions
    assert "mylib_beside.layers:act" in found


def test_the_package_of_a_registered_class_counts(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE)
    module = importlib.import_module("mylib_beside.heads")
    plugins.register(vars(module)["Mine"])
    found = fingerprint(vars(module)["Mine"], plugins.packages()).definitions
    assert {"mylib_beside.heads:Mine", "mylib_beside.layers:act"} <= found.keys()
