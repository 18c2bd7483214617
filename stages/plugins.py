"""Code of users: Python files and installed packages that add kinds without a fork.

A plug-in file is one module. It lives under a name made from the file's, wherever the file lies, so that keys
do not change when it is moved; and its source travels with the nodes that need it, so that a worker runs
them which has no such file.
"""

import site
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from importlib.metadata import entry_points
from importlib.util import find_spec, spec_from_loader
from inspect import getsource
from linecache import checkcache
from pathlib import Path
from sysconfig import get_path
from traceback import extract_tb
from types import CodeType, ModuleType
from typing import Any

from permafrost.stages.stale_classes import again, is_stale, named_now
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import forget_others, packages_of, use_source
from permafrost.storage.loaded_code import is_class, require_as_written
from permafrost.storage.paths import checked_path
from permafrost.storage.quoting import quoted
from permafrost.storage.source_facts import SourceFacts, source_facts

PREFIX = "permafrost_plugins"
"""Package that the modules of plug-in files seem to be in."""
ENTRY_POINTS = "permafrost.kinds"
"""Group of the entry points of installed packages: modules, or classes in them."""
MAX_FILE_BYTES = 1 << 20
INSTALLERS_FOLDERS = "site-packages", "dist-packages"
"""Names of the folders into which installers put packages; the second one is Debian's."""


@dataclass(frozen=True)
class Plugin:
    """A module that is not ours."""

    name: str
    source: str
    origin: str
    """Where it came from, for people."""
    module: ModuleType
    beside: tuple[str, ...] = ()
    """Packages and modules that it imports and that are no installed ones."""
    specs: Mapping[str, ModuleSpec | None] = field(default_factory=dict[str, ModuleSpec | None])
    """Of the modules of these that were there once it had run; a reload gives a module another one."""


class _Plugins:
    """What this process has of them."""

    def __init__(self) -> None:
        self.loaded: dict[str, Plugin] = {}
        """By name of the module."""
        self.in_use: tuple[str, ...] = ()
        """Modules whose kinds count: files of the experiment that was read last, and what came with nodes."""
        self.registered: dict[str, type] = {}
        """Classes given one by one, by import path."""
        self.read: dict[str, tuple[ModuleSpec | None, str]] = {}
        """By name of their modules, the source when they were registered; a reload gives another spec."""
        self.installed: tuple[ModuleType | type, ...] | None = None
        """What entry points name; None before they were looked up."""


_PLUGINS = _Plugins()
_LOCK = threading.Lock()


class _Loader(InspectLoader):
    """Runs a source that is in memory, so that tracebacks and `inspect` find its lines."""

    def __init__(self, source: str, path: str) -> None:
        self._source, self._path = source, path

    def get_source(self, fullname: str) -> str:
        return self._source

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self._source, self._path)

    def get_filename(self, fullname: str) -> str:
        return self._path


def use_files(paths: Sequence[str | Path]) -> None:
    """Load plug-in files; those of an earlier call that are not named any more play no role.

    A file is loaded anew if it was edited since, or a module beside it was reloaded.

    Args:
        paths: relative ones count from the working folder.

    Raises:
        InputError: a file cannot be read or run, or two have the same name; or a module beside one was edited
            and not reloaded.
    """
    seen: dict[str, Path] = {}
    for path in map(Path, paths):
        name = f"{PREFIX}.{path.stem}"
        if not path.stem.isidentifier():
            raise InputError(
                f"the plug-in {quoted(str(path))} has a name that no module can have; use letters, "
                "digits and _"
            )
        if name in seen:
            raise InputError(
                f"the plug-ins {quoted(str(seen[name]))} and {quoted(str(path))} have the same name, "
                "by which keys know them; rename one"
            )
        seen[name] = path
    sources = {name: _read(path) for name, path in seen.items()}
    with _LOCK:
        forget_others()
        for name, path in seen.items():
            _load(name, sources[name], str(path))
        _PLUGINS.in_use = tuple(seen)


def look_anew() -> None:
    """Look at modules beside plug-ins as they are now, for whoever uses plug-ins and reads no experiment.

    Raises:
        InputError: a module beside a plug-in file was edited and not reloaded.
    """
    with _LOCK:
        forget_others()
        for plugin in in_use():
            _load(plugin.name, plugin.source, plugin.origin)


def in_use() -> list[Plugin]:
    """Those whose kinds count, in the order in which they were given."""
    return [_PLUGINS.loaded[name] for name in _PLUGINS.in_use]


def use_sources(sources: Mapping[str, str]) -> None:
    """Load plug-in modules that came with a node, unless this process has the very same.

    Raises:
        InputError: one cannot be run here.
    """
    with _LOCK:
        # Of a module whose classes were registered here, those count and no others.
        ready = {*_PLUGINS.in_use, *(cls.__module__ for cls in _PLUGINS.registered.values())}
        for name, source in sources.items():
            known = _PLUGINS.loaded.get(name)
            if known is None or known.source != source:
                _load(name, source, name)
            if name not in ready:
                _PLUGINS.in_use += (name,)


def _load(name: str, source: str, origin: str) -> None:
    known = _PLUGINS.loaded.get(name)
    if known is not None and known.source == source and _is_current(known):
        # What is beside it may import other things than before.
        _PLUGINS.loaded[name] = replace(known, beside=_beside(known.module, source))
        return
    module = _run(name, source, origin)
    beside = _beside(module, source)
    use_source(name, source)
    _PLUGINS.loaded[name] = Plugin(name, source, origin, module, beside, _specs_in(beside))


def _is_current(plugin: Plugin) -> bool:
    """Whether it is loaded, and has nothing of modules from before these were reloaded."""
    return sys.modules.get(plugin.name) is plugin.module and all(
        _spec_of(name) is spec for name, spec in plugin.specs.items()
    )


def _specs_in(packages: Sequence[str]) -> dict[str, ModuleSpec | None]:
    return {
        name: _spec_of(name) for name in list(sys.modules) if name.partition(".")[0] in packages
    }


def _spec_of(name: str) -> ModuleSpec | None:
    return getattr(sys.modules.get(name), "__spec__", None)


def _run(name: str, source: str, origin: str) -> ModuleType:
    if PREFIX not in sys.modules:
        package = sys.modules[PREFIX] = ModuleType(PREFIX, "Plug-in files.")
        package.__path__ = []
    spec = spec_from_loader(name, _Loader(source, origin), origin=origin)
    assert spec is not None, "a loader was given"
    module = ModuleType(name)
    module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, origin
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        exec(compile(source, origin, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        lines = [f.lineno for f in extract_tb(error.__traceback__) if f.filename == origin]
        where = f" in line {lines[-1]}" if lines else ""
        advice = (
            "put the folder that this module lies in on PYTHONPATH (the plug-in's own is not searched, nor "
            "by a leading dot), or install its package"
            if isinstance(error, ModuleNotFoundError) or _is_beside(error)
            else "mend the file"
        )
        raise InputError(
            f"the plug-in {quoted(origin)} cannot be loaded: {type(error).__name__}{where}: "
            f"{quoted(str(error))}; {advice}"
        ) from error
    return module


def _is_beside(error: BaseException) -> bool:
    """Whether it is the import of a module of the plug-in's own folder, by a leading dot."""
    return isinstance(error, ImportError) and (error.name or "").partition(".")[0] == PREFIX


def register(cls: type) -> None:
    """Add one class of a module of yours; registered again after an edit, the new one counts.

    Raises:
        InputError: it is defined in a notebook or a script, or inside a function, where nobody else finds it;
            its module has another class under its name; or its file was edited after it was loaded.
    """
    where = f"{cls.__module__}.{cls.__qualname__}"
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        raise InputError(
            f"{where} is defined in a notebook, a script or a function, so that its code can be in no key "
            "and no worker can find it; put it in a file, then import and register it, or name the file in "
            "'plugins'"
        )
    if is_stale(cls, _PLUGINS.registered.values()):
        raise InputError(
            f"{where} is not the class that its module has under this name now, as after a reload; "
            f"{again(cls)}"
        )
    module = sys.modules[cls.__module__]
    checkcache()
    source = getsource(module)
    require_as_written(module.__name__, source)
    known = _PLUGINS.read.get(module.__name__)
    is_edited = known is not None and _facts(module, known[1]) != _facts(module, source)
    if known is not None and is_edited and known[0] is module.__spec__:
        raise InputError(
            f"{module.__file__} was edited after it was loaded, so keys would not say what runs; reload it "
            "(importlib.reload) and register its classes again"
        )
    _PLUGINS.read[module.__name__] = module.__spec__, source
    # Modules beside it may have been reloaded as well.
    forget_others()
    use_source(module.__name__, source)
    origin, beside = str(module.__file__), _beside(module, source)
    _PLUGINS.loaded[module.__name__] = Plugin(module.__name__, source, origin, module, beside)
    written = _facts(module, source).definitions
    for name in list(_PLUGINS.registered):
        where, _, qualname = name.partition(":")
        if where == module.__name__ and qualname.partition(".")[0] not in written:
            del _PLUGINS.registered[name]  # it was renamed or taken out
    _PLUGINS.registered[f"{cls.__module__}:{cls.__qualname__}"] = cls


def _registered() -> Mapping[str, type]:
    """Those given one by one.

    Raises:
        InputError: the module of one was reloaded since, so that what it uses there is another version's.
    """
    for name, cls in _PLUGINS.registered.items():
        if named_now(cls) is not cls:
            raise InputError(
                f"{name.replace(':', '.')} is another one since its module was reloaded; {again(cls)}"
            )
    return _PLUGINS.registered


def classes() -> list[type]:
    """The classes of installed packages, of plug-in files in use, and registered ones.

    Raises:
        InputError: a registered one was reloaded and not registered again.
    """
    found: dict[str, type] = {}
    for given in (*_entry_points(), *(plugin.module for plugin in in_use())):
        for cls in defined_in(given) if isinstance(given, ModuleType) else [given]:
            found[f"{cls.__module__}:{cls.__qualname__}"] = cls
    found |= _registered()
    return list(found.values())


def defined_in(module: ModuleType) -> list[type]:
    """Classes that a module defines, in their order; not those that it imports."""
    return [
        value
        for value in vars(module).values()
        if is_class(value) and value.__module__ == module.__name__
    ]


def origin_of(cls: type) -> str:
    """Where a class came from, for people."""
    loaded = _PLUGINS.loaded.get(cls.__module__)
    return f"{cls.__module__}.{cls.__qualname__}" + (f" ({loaded.origin})" if loaded else "")


def generation() -> Sequence[object]:
    """Equal between two calls if no plug-in was loaded, dropped or registered between them."""
    modules = (plugin.module for plugin in in_use())
    # Not their ids, which another module may have once these are gone.
    return (*modules, *_entry_points(), *_registered().values())


def packages() -> tuple[str, ...]:
    """Modules and packages of plug-ins, whose code counts in keys as ours does: also those beside them that
    they import, which nothing else has a version of."""
    installed = [g.__name__ if isinstance(g, ModuleType) else g.__module__ for g in _entry_points()]
    registered = [name.partition(":")[0] for name in _PLUGINS.registered]
    whole = (name.split(".")[0] for name in (*installed, *registered))
    beside = (name for plugin in _PLUGINS.loaded.values() for name in plugin.beside)
    return tuple(dict.fromkeys((*whole, *_PLUGINS.loaded, *beside)))


def in_file(entry: str) -> str:
    """A definition (`module:name`) by the last part of its module's name: a file has one package in `plugins`
    and another one, or none, where it is imported and registered."""
    module, _, name = entry.partition(":")
    return f"{module.rpartition('.')[2]}:{name}"


def _beside(module: ModuleType, source: str) -> tuple[str, ...]:
    """Packages and modules that a plug-in imports, and that these import, and that are no installed ones."""
    return tuple(sorted(packages_of(_facts(module, source).imported, _is_installed)))


def _facts(module: ModuleType, source: str) -> SourceFacts:
    return source_facts(source, module.__name__, is_package=False)


def _found(name: str) -> ModuleSpec | None:
    """Where a module or package of the outermost level is, by any finder; imports nothing."""
    loaded = _spec_of(name)
    return loaded if loaded is not None else find_spec(name)


def _is_installed(package: str) -> bool:
    """Whether a package comes with Python, from an installer, or is ours; one that cannot be found is."""
    if package in sys.stdlib_module_names or package in (PREFIX, __name__.split(".")[0]):
        return True
    try:
        spec = _found(package)
    except ValueError:
        return True  # it was loaded without a spec
    if spec is None:
        return True
    # A package without an `__init__` has folders and no file.
    places = spec.submodule_search_locations or ([spec.origin] if spec.has_location else [])
    installed = _installed_folders(tuple(sys.path))
    return all(
        any(Path(str(place)).resolve().is_relative_to(folder) for folder in installed)
        for place in places
    )


@lru_cache(maxsize=1)
def _installed_folders(path: Sequence[str]) -> frozenset[Path]:
    """Where Python's own modules are, and where installers put packages: of this interpreter, of the user,
    and of whatever else is on the path under an installer's name."""
    own = [get_path(name) for name in ("purelib", "platlib", "stdlib")]
    named = [one for one in path if Path(one).name in INSTALLERS_FOLDERS]
    folders = (*own, *site.getsitepackages(), site.getusersitepackages(), *named)
    return frozenset(Path(folder).resolve() for folder in folders)


def sources_of(entries: Iterable[Any]) -> Mapping[str, str]:
    """The sources of those plug-in modules that classes or functions, or import paths of such, are defined
    in, by module."""
    modules = {e.partition(":")[0] if isinstance(e, str) else e.__module__ for e in entries}
    names = modules & _PLUGINS.loaded.keys()
    return {name: _PLUGINS.loaded[name].source for name in sorted(names)}


def _entry_points() -> tuple[ModuleType | type, ...]:
    if _PLUGINS.installed is None:
        found: list[ModuleType | type] = []
        for point in entry_points(group=ENTRY_POINTS):
            try:
                found.append(point.load())
            except Exception as error:
                raise InputError(
                    f"the installed plug-in {quoted(point.name)} ({quoted(point.value)}) cannot be loaded: "
                    f"{type(error).__name__}: {quoted(str(error))}; mend or uninstall its package"
                ) from error
        _PLUGINS.installed = tuple(found)
    return _PLUGINS.installed


def _read(path: Path) -> str:
    checked_path(path, "a plug-in")
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError(
                f"the plug-in {quoted(str(path))} has {path.stat().st_size:,} bytes; a plug-in has at most "
                f"{MAX_FILE_BYTES:,}"
            )
        # Some editors begin a file with a byte order mark, which Python reads over and `compile` does not.
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise InputError(
            f"the plug-in {quoted(str(path))} cannot be read: {reason}; give the path of a Python file, "
            f"relative to the working folder {Path.cwd()}"
        ) from error
