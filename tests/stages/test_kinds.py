"""Kinds: what a field of a category takes, keeps and refuses, and where kinds come from."""

import copy
import gc
import importlib.metadata
import pkgutil
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from permafrost.flows import experiment  # noqa: F401 # imports every category
from permafrost.stages import kinds, plugins
from permafrost.stages.finetune import losses  # noqa: F401 # no experiment names them yet
from permafrost.stages.graph_encoders import encoder, readout  # noqa: F401 # likewise
from permafrost.stages.heads import HEADS, GlotHead, HeadConfig, MeanHead, ScorerHead
from permafrost.stages.kinds import Category, all_categories, kind_name, kinds_in, use_plugins
from permafrost.storage.errors import InputError

MINE = """
from typing import Literal
from permafrost.stages.heads.head import Head
from permafrost.stages.heads.poolings import MeanPooling

class {cls}(Head):
    kind: Literal["{kind}"] = "{kind}"
    scale: float = 1.0

    def build(self, d_in, generator):
        return MeanPooling(d_in)
"""


@pytest.fixture(autouse=True)
def no_plugins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(plugins, "_PLUGINS", plugins._Plugins())
    yield
    for name in [n for n in sys.modules if n.startswith(plugins.PREFIX)]:
        del sys.modules[name]


class Holder(BaseModel):
    head: HeadConfig
    others: dict[str, HeadConfig] = {}


def test_a_field_keeps_and_dumps_every_field_of_the_kind() -> None:
    holder = Holder(head=GlotHead(tau=0.3))
    assert holder.model_dump()["head"]["tau"] == 0.3
    assert Holder.model_validate_json(holder.model_dump_json()) == holder
    assert holder.model_dump() != Holder(head=GlotHead(tau=0.9)).model_dump()


@pytest.mark.parametrize(
    ("value", "where", "reason"),
    [
        ({"kind": "glot", "tau": "high"}, ("head", "tau"), "valid number"),
        ({"kind": "glot", "tua": 1}, ("head", "tua"), "Extra inputs"),
        ({"kind": "glow"}, ("head",), "'glow' .* expected tags: .*'glot'"),
        ({"tau": 1}, ("head",), "discriminator 'kind'"),
        ({"kind": ["glot"]}, ("head",), "expected tags"),
        ("glot", ("head",), "valid dictionary"),
        (None, ("head",), "valid dictionary"),
    ],
)
def test_what_is_wrong_is_told_where_it_is(value: object, where: tuple, reason: str) -> None:
    with pytest.raises(ValidationError, match=reason) as caught:
        Holder.model_validate({"head": value})
    assert [e["loc"] for e in caught.value.errors()] == [where]


def test_a_convolution_may_be_its_name_alone_and_is_written_so() -> None:
    assert GlotHead(conv="gcn").model_dump(mode="json")["conv"] == "gcn"
    named = GlotHead.model_validate({"conv": {"kind": "pyg", "name": "SAGEConv"}})
    assert named.model_dump(mode="json")["conv"]["name"] == "SAGEConv"
    adapter = TypeAdapter(HeadConfig)
    assert adapter.validate_json(adapter.dump_json(named)) == named


def test_kinds_inside_a_config_are_found_at_any_depth() -> None:
    holder = Holder(head=GlotHead(), others={"a": MeanHead(), "b": ScorerHead()})
    names = [kind_name(cls) for cls in kinds_in({"x": (holder,)})]
    assert names == ["glot", "gat", "mean", "scorer"]


def write(folder: Path, name: str, cls: str, kind: str) -> Path:
    path = folder / f"{name}.py"
    path.write_text(MINE.format(cls=cls, kind=kind))
    return path


def test_a_file_adds_a_kind_which_goes_with_it(tmp_path: Path) -> None:
    ours = set(HEADS.kinds())
    plugins.use_files([write(tmp_path, "mine", "MyHead", "my_head")])
    holder = Holder.model_validate({"head": {"kind": "my_head", "scale": 2}})
    assert type(holder.head).__module__ == "permafrost_plugins.mine"
    assert set(HEADS.kinds()) == ours | {"my_head"}
    plugins.use_files([])
    assert set(HEADS.kinds()) == ours


def test_an_edited_file_is_loaded_anew(tmp_path: Path) -> None:
    path = write(tmp_path, "mine", "MyHead", "my_head")
    plugins.use_files([path])
    path.write_text(path.read_text().replace("scale: float = 1.0", "scale: float = 3.0"))
    plugins.use_files([path])
    assert HEADS.validate({"kind": "my_head"}).model_dump()["scale"] == 3.0


def test_what_tells_generations_apart_stays_while_they_are_compared(tmp_path: Path) -> None:
    """By the address of a module that is gone, another one at that address would be taken for it."""
    path = write(tmp_path, "mine", "MyHead", "my_head")
    plugins.use_files([path])
    before, module = plugins.generation(), weakref.ref(sys.modules["permafrost_plugins.mine"])
    path.write_text(path.read_text().replace("scale: float = 1.0", "scale: float = 3.0"))
    plugins.use_files([path])
    gc.collect()
    assert before != plugins.generation()
    assert module() is not None


def test_the_same_source_elsewhere_is_the_same_class(tmp_path: Path) -> None:
    plugins.use_files([write(tmp_path, "mine", "MyHead", "my_head")])
    first = HEADS.kinds()["my_head"]
    (tmp_path / "moved").mkdir()
    plugins.use_files([write(tmp_path / "moved", "mine", "MyHead", "my_head")])
    assert HEADS.kinds()["my_head"] is first


def test_two_kinds_of_one_name_are_refused_by_both_origins(tmp_path: Path) -> None:
    one = write(tmp_path, "one", "MyHead", "my_head")
    two = write(tmp_path, "two", "YourHead", "my_head")
    plugins.use_files([one, two])
    with pytest.raises(InputError) as caught:
        HEADS.kinds()
    assert all(str(path) in str(caught.value) for path in (one, two))
    plugins.use_files([write(tmp_path, "again", "Mean", "mean")])
    with pytest.raises(InputError, match=r"poolings\.MeanHead and .*again\.Mean"):
        HEADS.kinds()


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    files = [write(tmp_path, "mine", "A", "a"), write(tmp_path / "b", "mine", "B", "b")]
    with pytest.raises(InputError, match="have the same name"):
        plugins.use_files(files)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import nothing_of_the_kind", "ModuleNotFoundError"),
        ("class A(", "SyntaxError"),
        ("1 / 0", "ZeroDivisionError"),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_loaded_is_told(
    tmp_path: Path, source: str | None, reason: str
) -> None:
    path = tmp_path / "broken.py"
    if source is not None:
        path.write_text(source)
    with pytest.raises(InputError, match=reason) as caught:
        plugins.use_files([path])
    assert "broken.py" in str(caught.value)
    assert "permafrost_plugins.broken" not in sys.modules


_KIND = "from typing import Literal\nfrom permafrost.stages.heads.head import Head\nclass MyHead(Head):\n"
_BUILD = "    def build(self, d_in, generator): ...\n"


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("", "defines no kind: it has no class; derive one from"),
        (
            "class MyHead:\n    kind: str\n",
            "MyHead derives from no base class of kinds; derive one from",
        ),
        (
            "from permafrost.stages.kinds import Kind\nfrom typing import Literal\n"
            "class Mine(Kind):\n    kind: Literal['a'] = 'a'\n",
            "Mine derives from no base class of kinds; derive one from",
        ),
        (_KIND + _BUILD, r"MyHead has no name; give it one: kind: Literal\["),
        (
            _KIND + "    kind: Literal['a', 'b'] = 'a'\n" + _BUILD,
            r"Literal\['a', 'b'\] = 'a'\"; a kind has one",
        ),
        (
            _KIND + "    kind: Literal['a']\n" + _BUILD,
            r"kind: typing.Literal\['a'\]\"; a kind has one name",
        ),
        (
            _KIND + "    kind: Literal['a'] = 'b'\n" + _BUILD,
            r"\['a'\] = 'b'.*: kind: Literal\[\"a\"\] = \"a\"",
        ),
        (_KIND + "    kind: str = 'a'\n" + _BUILD, "kind: str = 'a'.*; a kind has one name"),
        (
            "from __future__ import annotations\n"
            + _KIND.partition("\n")[2]
            + "    kind: Literal['a'] = 'a'\n",
            "a name that its file does not know; import it there",
        ),
        (
            _KIND + "    kind: Literal['a'] = 'a'\n",
            r"broken.MyHead .* lacks build; write it, as the base class .*heads\.head\.Head describes",
        ),
        (
            _KIND + "    kind: Literal['glot'] = 'glot'\n" + _BUILD,
            "GlotHead and .*MyHead.* another name",
        ),
        (
            "import sys\n\nsys.exit(3)\n",
            "cannot be loaded: SystemExit in line 3: '3'; mend the file",
        ),
        ("\n1 / 0", "ZeroDivisionError in line 2: .*; mend the file"),
        (
            "import my_helpers",
            r"ModuleNotFoundError in line 1: .*; put the folder .* on PYTHONPATH .*, or install its pack",
        ),
        (
            "from . import my_helpers",
            r"ImportError in line 1: .*; put the folder .* on PYTHONPATH .*, nor by a leading dot",
        ),
        ("from json import nothing", "ImportError in line 1: .*; mend the file"),
    ],
)
def test_a_file_without_a_kind_that_can_be_used_is_told(
    tmp_path: Path, source: str, told: str
) -> None:
    good, broken = write(tmp_path, "good", "Good", "good"), tmp_path / "broken.py"
    use_plugins([good])
    assert "good" in HEADS.kinds()
    broken.write_text(source)
    with pytest.raises(InputError, match=told) as caught:
        use_plugins([good, broken])
    assert "broken.py" in str(caught.value)
    assert plugins.in_use() == []


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = write(tmp_path, "mine", "MyHead", "my_head")
    path.write_text("\ufeff" + path.read_text(), encoding="utf-8")
    use_plugins([path])
    assert "my_head" in HEADS.kinds()


def test_a_name_that_no_module_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no module can have"):
        plugins.use_files([write(tmp_path, "my-head", "MyHead", "my_head")])


def test_a_class_of_a_notebook_is_refused_and_one_of_a_module_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space: dict[str, object] = {"__name__": "__main__"}
    exec(MINE.format(cls="MyHead", kind="my_head"), space)
    with pytest.raises(InputError, match=r"__main__\.MyHead is defined in a notebook"):
        plugins.register(space["MyHead"])  # type: ignore[arg-type]
    monkeypatch.syspath_prepend(tmp_path)
    write(tmp_path, "my_own_heads", "MyHead", "my_head")
    module = importlib.import_module("my_own_heads")
    plugins.register(module.MyHead)
    assert HEADS.kinds()["my_head"] is module.MyHead
    assert plugins.sources_of([module.MyHead]).keys() == {"my_own_heads"}


def test_an_installed_package_adds_its_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("a_package_of_heads")
    exec(MINE.format(cls="MyHead", kind="my_head"), module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    point = importlib.metadata.EntryPoint("heads", module.__name__, plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    assert HEADS.kinds()["my_head"] is module.MyHead
    assert "a_package_of_heads" in plugins.packages()


def test_an_installed_package_that_is_broken_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("heads", "not_there:Head", plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    with pytest.raises(InputError, match=r"not_there:Head.*ModuleNotFoundError"):
        HEADS.kinds()


def test_a_source_that_came_with_a_node_is_used_without_its_file() -> None:
    source = MINE.format(cls="MyHead", kind="my_head")
    plugins.use_sources({"permafrost_plugins.elsewhere": source})
    assert HEADS.validate({"kind": "my_head"}).model_dump()["scale"] == 1.0
    assert plugins.sources_of([HEADS.kinds()["my_head"]]) == {
        "permafrost_plugins.elsewhere": source
    }


def test_a_module_that_is_no_plugin_file_travels_too() -> None:
    source = MINE.format(cls="MyHead", kind="my_head")
    try:
        plugins.use_sources({"my_travelling_heads": source})
        assert type(HEADS.validate({"kind": "my_head"})).__module__ == "my_travelling_heads"
    finally:
        sys.modules.pop("my_travelling_heads", None)


def test_of_a_registered_module_only_the_registered_classes_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source = MINE.format(cls="MyHead", kind="my_head") + MINE.format(cls="Other", kind="other")
    (tmp_path / "my_two_heads.py").write_text(source)
    plugins.register(importlib.import_module("my_two_heads").MyHead)
    before = HEADS.kinds()
    plugins.use_sources({"my_two_heads": source})
    assert HEADS.kinds() == before
    assert "my_head" in before


def by_file(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    path = folder / "mine.py"
    path.write_text(source)
    plugins.use_files([path])


def by_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    module = types.ModuleType("a_package_of_kinds")
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    point = importlib.metadata.EntryPoint("kinds", module.__name__, plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [point])
    monkeypatch.setattr(plugins._PLUGINS, "installed", None)


def by_registering(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "my_own_kinds", raising=False)
    (folder / "my_own_kinds.py").write_text(source)
    plugins.register(importlib.import_module("my_own_kinds").Mine)


def by_the_tree(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """A file in the room itself: found among its modules, without being named anywhere."""
    (folder / "a_kind_in_the_tree.py").write_text(source)
    for category in all_categories():
        name, *_ = category.packages
        package = importlib.import_module(name)
        paths = [*package.__path__, str(folder)]
        monkeypatch.setattr(package, "__path__", paths)
        monkeypatch.setattr(package.__spec__, "submodule_search_locations", paths)
        monkeypatch.setattr(category, "_modules", None)
        monkeypatch.setattr(category, "_ours", None)
        monkeypatch.setattr(category, "_all", None)
        monkeypatch.delitem(sys.modules, f"{name}.a_kind_in_the_tree", raising=False)


@pytest.mark.few(30)
@pytest.mark.parametrize("way", [by_file, by_entry_point, by_registering, by_the_tree])
@pytest.mark.parametrize("category", all_categories(), ids=lambda c: c.noun)
def test_every_category_has_every_way_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    category: Category[Any],
    way: Callable[[Path, pytest.MonkeyPatch, str], None],
) -> None:
    monkeypatch.setattr(category, "_all", None)
    known = dict(category.kinds())
    like = next(iter(known.values()))
    way(
        tmp_path,
        monkeypatch,
        f"from typing import Literal\nfrom {like.__module__} import {like.__name__}\n"
        f"class Mine({like.__name__}):\n    {category.tag}: Literal['of_mine'] = 'of_mine'\n",
    )
    assert category.kinds().keys() == {*known, "of_mine"}
    assert category.kinds()["of_mine"].__name__ == "Mine"


def test_a_thread_that_looks_while_another_one_does_finds_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    category = copy.copy(HEADS)
    category._modules = category._ours = category._all = None
    sources, seen = kinds._sources, list[object]()

    def looked_at_meanwhile(name: str) -> Any:
        for found in sources(name):
            seen.append(category._modules)
            yield found

    monkeypatch.setattr(kinds, "_sources", looked_at_meanwhile)
    assert category.find("mean") is HEADS.find("mean")
    assert seen
    assert not any(found is not None for found in seen), "half of them"


@pytest.mark.parametrize("category", all_categories(), ids=lambda c: c.noun)
def test_the_names_that_are_read_off_sources_are_those_that_modules_define(
    category: Category[Any],
) -> None:
    defined = dict[str, type]()
    for name in category.packages:
        package = importlib.import_module(name)
        for found in pkgutil.iter_modules(package.__path__, f"{name}."):
            module = importlib.import_module(found.name)
            defined |= dict(category._named(plugins.defined_in(module)))
    assert defined
    assert category.kinds() == defined
    assert {name: category.find(name) for name in defined} == defined
