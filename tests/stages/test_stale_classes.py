"""Classes that a reload of their module has replaced are refused, and those it is about to have are not."""

import importlib
import sys
from pathlib import Path

import pytest

from permafrost.stages import plugins
from permafrost.storage.errors import InputError
from tests.stages.test_plugin_code import SOURCE
from tests.stages.test_plugin_code import beside as beside


def test_what_was_reloaded_has_to_be_registered_again(beside: Path) -> None:
    """Its `build` would find what the reload has put into the module."""
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")
    plugins.register(old := vars(heads)["Mine"])
    importlib.reload(heads)
    again = r"import it again \('from mylib_beside\.heads import Mine'\)"
    for looked in (plugins.classes, plugins.generation):
        with pytest.raises(InputError, match=rf"heads\.Mine is another one since .* {again}"):
            looked()
    with pytest.raises(InputError, match=rf"heads\.Mine is not the class .* as after .* {again}"):
        plugins.register(old)
    plugins.register(vars(heads)["Mine"])
    assert vars(heads)["Mine"] in plugins.classes()


def test_a_class_from_before_a_reload_is_refused_whatever_is_registered(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")
    old = vars(heads)["Mine"]
    importlib.reload(heads)
    with pytest.raises(InputError, match=r"heads\.Mine is not the class .* register that one, or"):
        plugins.register(old)
    plugins.register(new := vars(heads)["Mine"])
    with pytest.raises(InputError, match="import it again"):
        plugins.register(old)
    assert new in plugins.classes(), "a stale cell displaces nothing"


def test_a_class_that_its_module_is_about_to_have_is_registered(beside: Path) -> None:
    """By a decorator, also in a reload, and in a function that gives a class a name of the module."""
    decorated = SOURCE.replace("class Mine", "@register\nclass Mine")
    making = "def make():\n    global Mine\n    @register\n    class Mine: pass\n"
    own = "def register(cls):\n    plugins.register(cls)\n    return cls\n"
    imported = "from permafrost.stages import plugins\n"
    (beside / "heads.py").write_text(f"{imported}{own}{decorated}{making}")
    heads = importlib.import_module("mylib_beside.heads")
    for make in (lambda: importlib.reload(heads), lambda: vars(heads)["make"]()):
        before = vars(heads)["Mine"]
        make()
        assert vars(heads)["Mine"] is not before
        assert vars(heads)["Mine"] in plugins.classes()


def test_a_function_that_registers_a_class_of_before_a_reload_is_refused(beside: Path) -> None:
    """It is of the class's own module, but gives nothing a name there; one that does is none of them."""
    adding = "from permafrost.stages import plugins\ndef add(cls):\n    plugins.register(cls)\n"
    making = "def make():\n    global Mine\n    Mine = type('Mine', (), {})\n    plugins.register(Mine)\n"
    (beside / "heads.py").write_text(f"{SOURCE}{adding}{making}")
    heads = importlib.import_module("mylib_beside.heads")
    old = vars(heads)["Mine"]
    importlib.reload(heads)
    new = vars(heads)["Mine"]
    with pytest.raises(InputError, match=r"heads\.Mine is not the class .* import it again"):
        vars(heads)["add"](old)
    vars(heads)["add"](new)
    assert new in plugins.classes()
    vars(heads)["make"]()
    assert vars(heads)["Mine"] in plugins.classes()
    assert vars(heads)["Mine"] is not new


def test_a_class_whose_module_is_loaded_no_more_is_refused(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE)
    old = vars(importlib.import_module("mylib_beside.heads"))["Mine"]
    del sys.modules["mylib_beside.heads"]
    with pytest.raises(InputError, match=r"heads\.Mine is not the class .* import it again"):
        plugins.register(old)


def test_a_class_that_was_renamed_is_registered_no_more(beside: Path) -> None:
    (beside / "heads.py").write_text(SOURCE)
    heads = importlib.import_module("mylib_beside.heads")
    plugins.register(old := vars(heads)["Mine"])
    (beside / "heads.py").write_text(SOURCE.replace("class Mine", "class Renamed"))
    importlib.reload(heads)
    plugins.register(vars(heads)["Renamed"])
    assert vars(heads)["Mine"] is old, "a reload leaves it"
    assert old not in plugins.classes()
