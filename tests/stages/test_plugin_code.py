"""Code that plug-ins bring along counts in keys, and that of installed packages does not."""

import functools
import importlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from permafrost.stages import plugins
from permafrost.storage import fingerprint as code
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import fingerprint, other_code
from tests.storage.code_packages import forget

SOURCE = """
import json
import numpy as np
from mylib_beside.layers import act


SCALE = 1.0


class Mine:
    def run(self, x):
        'Its own.'
        known = x in {"a", "bb", "ccc", "dddd", "eeeee", 1, 2.0, (3, "x")}
        return act(np.abs(x)), json, known, [lambda y: y in {"q", "w", "e"}]
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
    forget()
    code._LOADED.clear()
    known = plugins._PLUGINS
    before = dict(known.loaded), known.in_use, dict(known.registered), dict(known.read)
    yield folder
    known.loaded, known.in_use, known.registered, known.read = before
    for name in [n for n in sys.modules if n.split(".")[0].endswith("_beside")]:
        del sys.modules[name]
    forget()


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


def test_what_a_package_beside_a_plugin_imports_counts_too(beside: Path, tmp_path: Path) -> None:
    """Loose files, each of which imports the next one, the last inside a function."""
    for name, source in {
        "loose_one_beside": "from loose_two_beside import act\n",
        "loose_two_beside": "def act(x):\n    from loose_three_beside import SCALE\n    return SCALE * x\n",
        "loose_three_beside": "SCALE = 1\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(source)
    (beside / "layers.py").write_text("import loose_one_beside\nact = loose_one_beside.act\n")
    path = tmp_path / "mine_beside.py"
    path.write_text(SOURCE)
    plugins.use_files([path])
    (plugin,) = plugins.in_use()
    found = fingerprint(vars(plugin.module)["Mine"], plugins.packages()).definitions
    assert {"loose_two_beside:act", "loose_three_beside:SCALE"} <= found.keys()


def test_folders_without_an_init_are_followed_without_importing_them(
    beside: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "plain_beside" / "deep" / "deeper"
    folder.mkdir(parents=True)
    (folder / "words.py").write_text(
        "from more_beside import SCALE\ndef act(x):\n    return SCALE\n"
    )
    (tmp_path / "more_beside.py").write_text("SCALE = 1\n")
    path = tmp_path / "mine_beside.py"
    path.write_text(
        "class Mine:\n    def run(self, x):\n        from plain_beside.deep.deeper import words\n"
        "        return words.act(x)\n"
    )
    plugins.use_files([path])
    (plugin,) = plugins.in_use()
    found = fingerprint(vars(plugin.module)["Mine"], plugins.packages()).definitions
    assert {"plain_beside.deep.deeper.words:act", "more_beside:SCALE"} <= found.keys()
    assert not {name for name in sys.modules if name.startswith("plain_beside")}


def test_a_package_that_an_import_hook_finds_is_none_of_an_installers(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an editable installation has one."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "hooked_beside.py").write_text("def act(x):\n    return x\n")

    class Finder:
        @staticmethod
        def find_spec(name: str, path: object = None, target: object = None) -> object:
            if name != "hooked_beside":
                return None
            place = folder / "hooked_beside.py"
            return importlib.util.spec_from_file_location(name, place)

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    path = tmp_path / "mine_beside.py"
    path.write_text(
        "class Mine:\n    def run(self, x):\n        from hooked_beside import act\n        return act(x)\n"
    )
    plugins.use_files([path])
    (plugin,) = plugins.in_use()
    found = fingerprint(vars(plugin.module)["Mine"], plugins.packages()).definitions
    assert "hooked_beside:act" in found


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_a_library_that_an_installer_put_elsewhere_is_an_installed_one(
    beside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """As in the user's site, in one that a venv shares, or on Debian."""
    installed = tmp_path / "elsewhere" / name
    installed.mkdir(parents=True)
    (installed / "library_beside.py").write_text("import loose_beside\n")
    monkeypatch.syspath_prepend(str(installed))
    (tmp_path / "loose_beside.py").write_text("")
    path = tmp_path / "mine_beside.py"
    path.write_text("import library_beside\n" + SOURCE)
    plugins.use_files([path])
    assert "mylib_beside" in plugins.packages()
    assert not {"library_beside", "loose_beside"} & {*plugins.packages()}


LAZY = """
import functools

class Lazy:
    def __getattr__(self, name):
        raise ModuleNotFoundError(f"{name} was asked for")
    @property
    def __class__(self):
        raise ModuleNotFoundError("its class was asked for")

def lazy(): ...
lazy = Lazy()

class Mine:
    kept = Lazy()
    @property
    def own(self): return 1
    @staticmethod
    def of_none(): return 1
    @classmethod
    def of_class(cls): return 1
    @functools.lru_cache
    def once(self): return 1
"""


def test_values_that_import_when_they_are_asked_are_left_alone(
    beside: Path, tmp_path: Path
) -> None:
    """As those of `six`, some of which stand for modules that are not there."""
    (beside / "heads.py").write_text("from mylib_beside.others import lazy\n" + LAZY)
    (beside / "others.py").write_text(LAZY)
    heads = importlib.import_module("mylib_beside.heads")
    plugins.register(vars(heads)["Mine"])
    assert fingerprint(vars(heads)["Mine"], plugins.packages())
    path = tmp_path / "mine_beside.py"
    path.write_text("from mylib_beside.others import lazy\n" + LAZY)
    plugins.use_files([path])
    assert "Mine" in [cls.__name__ for cls in plugins.classes()]


@pytest.mark.parametrize("name", ["own", "of_none", "of_class", "once"])
def test_every_kind_of_method_that_was_edited_and_not_reloaded_is_noticed(
    beside: Path, name: str
) -> None:
    (beside / "heads.py").write_text(LAZY)
    heads = importlib.import_module("mylib_beside.heads")
    (head, _, rest) = LAZY.partition(f"def {name}(")
    (beside / "heads.py").write_text(f"{head}def {name}({rest.replace('return 1', 'return 2', 1)}")
    with pytest.raises(InputError, match=rf"heads\.py has another Mine\.{name} than the one"):
        plugins.register(vars(heads)["Mine"])


def test_a_reloaded_helper_has_the_digest_of_what_runs(beside: Path) -> None:
    """As in a notebook: edit, reload both, register again."""
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")

    def helper() -> str:
        return fingerprint(vars(heads)["Mine"], plugins.packages()).definitions[
            "mylib_beside.layers:act"
        ]

    plugins.register(vars(heads)["Mine"])
    before = helper()
    layers = sys.modules["mylib_beside.layers"]
    (beside / "layers.py").write_text("def act(x):\n    return x + 2\n")
    # Not in the second in which it was written first: Python's bytecode is told apart by whole seconds.
    past = time.time() - 60
    os.utime(beside / "layers.py", (past, past))
    importlib.reload(layers)
    importlib.reload(heads)
    plugins.register(vars(heads)["Mine"])
    assert layers.act(1) == 3
    assert helper() != before
    # Edited and not reloaded: what runs is in no file.
    time.sleep(0.02)
    (beside / "layers.py").write_text("def act(x):\n    return x + 3\n")
    with pytest.raises(InputError, match="was changed after this process had loaded it"):
        plugins.register(vars(heads)["Mine"])


@pytest.fixture
def file(beside: Path, tmp_path: Path) -> Path:
    """A plug-in file that has `act` of a module beside it, in use."""
    path = tmp_path / "mine_beside.py"
    path.write_text(SOURCE)
    plugins.use_files([path])
    return path


def digests() -> dict[str, str]:
    """Of what the class in the file reaches."""
    (plugin,) = plugins.in_use()
    return fingerprint(vars(plugin.module)["Mine"], plugins.packages()).definitions


@pytest.mark.parametrize("is_named_again", [True, False])
def test_a_reloaded_helper_of_a_plugin_file_has_the_digest_of_what_runs(
    beside: Path, file: Path, is_named_again: bool
) -> None:
    """The file itself is as it was, and has the helper's function under a name of its own."""
    before = digests()
    (beside / "more.py").write_text("def more(x):\n    return x + 2\n")
    (beside / "layers.py").write_text(
        "from mylib_beside.more import more\ndef act(x):\n    import loose_beside\n    return more(x)\n"
    )
    (file.parent / "loose_beside.py").write_text("")
    importlib.reload(sys.modules["mylib_beside.layers"])
    plugins.use_files([file]) if is_named_again else plugins.look_anew()
    after = digests()
    act = "mylib_beside.layers:act"
    assert before[act] != after[act]
    assert "mylib_beside.more:more" in after
    assert "loose_beside" in plugins.packages()
    (plugin,) = plugins.in_use()
    assert vars(plugin.module)["act"](1) == 3
    # Nothing was edited since.
    plugins.use_files([file]) if is_named_again else plugins.look_anew()
    assert plugins.in_use()[0].module is plugin.module
    assert digests() == after


@pytest.mark.parametrize("is_named_again", [True, False])
def test_a_helper_of_a_plugin_file_that_was_edited_and_not_reloaded_is_refused(
    beside: Path, file: Path, is_named_again: bool
) -> None:
    before = digests()
    time.sleep(0.02)
    (beside / "layers.py").write_text("def act(x):\n    return x + 20\n")
    for _ in range(2):
        with pytest.raises(
            InputError,
            match=r"layers\.py was changed after this .*; reload it \(importlib\.reload\)",
        ):
            plugins.use_files([file]) if is_named_again else plugins.look_anew()
    importlib.reload(sys.modules["mylib_beside.layers"])
    plugins.use_files([file])
    assert digests() != before


def test_a_plugin_file_whose_helper_is_refused_is_loaded_again_after_it(
    beside: Path, file: Path
) -> None:
    """Both were edited, and the file put back."""
    before = digests()
    time.sleep(0.02)
    (beside / "layers.py").write_text("def act(x):\n    return x + 20\n")
    file.write_text(SOURCE.replace("abs(x)", "sign(x)"))
    with pytest.raises(InputError, match=r"layers\.py was changed after this process"):
        plugins.use_files([file])
    (beside / "layers.py").write_text("def act(x):\n    return x + 1\n")
    importlib.reload(sys.modules["mylib_beside.layers"])
    file.write_text(SOURCE)
    plugins.use_files([file])
    (plugin,) = plugins.in_use()
    assert sys.modules[plugin.name] is plugin.module
    assert digests() == before


@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("heads.py", SOURCE.replace("abs(x)", "sign(x)")),
        ("layers.py", "def act(x):\n    return x + 2\n"),
    ],
)
def test_what_was_edited_and_not_reloaded_is_not_registered(
    beside: Path, name: str, new: str
) -> None:
    """Nothing has looked at the files before the edit: only what is loaded tells."""
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")
    (beside / name).write_text(new)
    with pytest.raises(InputError, match=rf"{name} has another (Mine\.run|act) than the one that"):
        plugins.register(vars(heads)["Mine"])
    assert vars(heads)["Mine"] not in plugins.classes()


def test_an_edited_value_is_not_registered_either_once_the_file_is_known(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")
    plugins.register(vars(heads)["Mine"])
    edited = SOURCE.replace("SCALE = 1.0", "SCALE = 20.0")
    (beside / "heads.py").write_text(edited)
    with pytest.raises(InputError, match=r"heads\.py was edited after it was loaded"):
        plugins.register(vars(heads)["Mine"])
    importlib.reload(heads)
    plugins.register(vars(heads)["Mine"])
    (beside / "heads.py").write_text("# A note.\n" + edited)
    plugins.register(vars(heads)["Mine"])


def test_what_another_module_puts_into_its_place_is_no_reload(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE.replace("SCALE = 1.0", "def act2(x):\n    return x"))
    heads = importlib.import_module("mylib_beside.heads")
    vars(heads)["Mine"].itself = vars(heads)["Mine"]
    layers = sys.modules["mylib_beside.layers"]
    vars(layers)["act"] = functools.wraps(vars(layers)["act"])(lambda x: x)
    vars(heads)["act2"] = len
    plugins.register(vars(heads)["Mine"])
    assert fingerprint(vars(heads)["Mine"], plugins.packages())
    # From compiled files, whose sets are in another order.
    for name in [n for n in sys.modules if n.startswith("mylib_beside")]:
        del sys.modules[name]
    heads = importlib.import_module("mylib_beside.heads")
    plugins.register(vars(heads)["Mine"])


def test_a_module_that_holds_a_helper_of_before_its_reload_is_refused(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")
    (beside / "layers.py").write_text("def act(x):\n    return x + 20\n")
    importlib.reload(sys.modules["mylib_beside.layers"])
    plugins.register(vars(heads)["Mine"])
    with pytest.raises(InputError, match=r"has act from before mylib_beside\.layers was reloaded"):
        fingerprint(vars(heads)["Mine"], plugins.packages())
    importlib.reload(heads)
    plugins.register(vars(heads)["Mine"])
    assert fingerprint(vars(heads)["Mine"], plugins.packages())


def test_a_process_with_other_code_of_a_helper_is_told_apart(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")
    plugins.register(vars(heads)["Mine"])
    found = fingerprint(vars(heads)["Mine"], plugins.packages()).definitions
    assert other_code(found) is None
    assert other_code({"permafrost.stages.kinds:any": "0" * 16}) is None, "another check has ours"
    for name in ("mylib_beside.layers:act", "mylib_beside.layers:gone", "gone_beside:act"):
        assert other_code(found | {name: "0" * 16}) == name
