"""Code fingerprint: a digest of the project functions that an entry point actually reaches.

Only the parsed syntax counts; comments, docstrings and formatting do not. Names are followed through module
globals, imports between project packages and attribute access on imported modules; classes are included
whole, and so is a module that is passed on as a value. What imports bind the names of a module to counts by
name, outside the packages too. A choice by string at run time cannot be followed, so a registry must be a
module-level table that names its members, which are then all reached.
"""

import hashlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
)
from itertools import compress, repeat
from operator import is_not
from pathlib import Path
from threading import Lock

from permafrost.storage.errors import InputError
from permafrost.storage.keys import definitions_digest, digest
from permafrost.storage.loaded_code import require_as_written, require_bound
from permafrost.storage.source_facts import ALL, Definition, SourceFacts, Target, source_facts

Place = tuple[str, str]
"""Module and top-level name."""
EFFECTS = "(import effects)"
"""In the place of a name: what a module does when it is imported."""
COMPILED = "(compiled)"
"""In the place of a name: a module that has no source, whole."""
WITH_IMPORTS = "+"
"""Between the digest of a definition and that of what imports bind of the names that it mentions, which
earlier versions did not record."""


_OURS = __name__.partition(".")[0]
_LOADERS = (ExtensionFileLoader, EXTENSION_SUFFIXES), (SourceFileLoader, SOURCE_SUFFIXES)
_RELOAD = "reload it (importlib.reload) and register again what was registered, or "
_SOURCES: dict[str, str] = {}
"""Sources of modules that were loaded from memory, or reloaded after an edit."""
_READ: dict[str, tuple[Path, float]] = {}
"""The file of a module and when it was read, in seconds since the epoch."""
_LOADED: dict[str, float] = {}
"""When a module was first seen to be loaded, in seconds since the epoch."""
_SPECS: dict[str, ModuleSpec | None] = {}
"""What modules that are none of ours had been loaded by then: a reload gives a module another one."""
_LOADING = Lock()
"""Held while the modules of a node are imported. An import that fails in one thread leaves half a module to
another one, and Python before 3.11.8 cannot parse sources in two threads, as import hooks do that check
types."""


def use_source(module: str, source: str) -> None:
    """Fingerprint `module` by this source, which is the one that runs, instead of its file."""
    if _SOURCES.get(module) != source:
        _SOURCES[module] = source
        _MODULES.pop(module, None)
        _forget_what_follows()


@dataclass(frozen=True)
class CodeFingerprint:
    """Digests of the reached definitions, so that a change can be named."""

    definitions: dict[str, str]
    """`module:name` to digest."""

    def is_other(self, name: str, recorded: str) -> bool:
        """Whether a definition has another digest than was recorded of it, as far as that goes."""
        now = self.definitions[name]
        return recorded != (now if WITH_IMPORTS in recorded else now.partition(WITH_IMPORTS)[0])

    @property
    def digest(self) -> str:
        """32 hex digits over all definitions."""
        return definitions_digest(self.definitions)


def fingerprint(entry: Callable[..., object] | str, packages: Sequence[str]) -> CodeFingerprint:
    """Fingerprint the code that `entry` reaches inside `packages` (dotted names, including submodules).

    Args:
        entry: a class or function, or the import path of one (`module:name`), which is not imported for it.
        packages: whose code counts.

    Raises:
        InputError: a file was changed after it had been imported, or a module has something of another one
            from before that one was reloaded.
    """
    # Called a few times per node, with thousands of modules loaded.
    if len(sys.modules) != len(_LOADED):
        _note_loaded()
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
    else:
        module, name = entry.__module__, entry.__qualname__
    found = _fingerprint(module, name.split(".")[0], tuple(packages))
    assert found.definitions, f"{entry!r} is not defined at the top level of a module of {packages}"
    return found


def _note_loaded() -> None:
    if _LOADED.keys() == sys.modules.keys():
        return
    for name in _LOADED.keys() - sys.modules.keys():
        _LOADED.pop(name, None)
        _SPECS.pop(name, None)
    for name in set(sys.modules) - _LOADED.keys():
        _LOADED[name] = time.time()
        if not _is_ours(name):
            _SPECS[name] = getattr(sys.modules.get(name), "__spec__", None)


def load(definitions: Iterable[str]) -> None:
    """Import the modules of fingerprinted definitions (`module:name`) before they run; some are late imports.

    Raises:
        InputError: a file was changed between its fingerprint and its import.
    """
    with _LOADING:
        missing = {name.partition(":")[0] for name in definitions} - sys.modules.keys()
        for module in missing:
            import_module(module)
    for path, read_at in (_READ[module] for module in missing & _READ.keys()):
        if path.stat().st_mtime > read_at:
            raise InputError(
                f"{path} was changed before this process had loaded it, so keys do not say what would run; "
                "start Python again"
            )


_MODULES: dict[str, SourceFacts] = {}
_IS_MODULE: dict[str, bool] = {}
_REACHED: dict[tuple[bool, tuple[str, ...]], dict[tuple[str, ...], tuple[Place, ...]]] = {}
"""What dotted names lead to, a module and names in it: by whether it is ours, and packages."""
_FINGERPRINTS: dict[tuple[str, str, tuple[str, ...]], CodeFingerprint] = {}


def _fingerprint(module: str, name: str, packages: tuple[str, ...]) -> CodeFingerprint:
    entry = module, name, packages
    if entry not in _FINGERPRINTS:
        _FINGERPRINTS[entry] = _reached(*entry)
    return _FINGERPRINTS[entry]


def _reached(module: str, name: str, packages: tuple[str, ...]) -> CodeFingerprint:
    seen: dict[str, str] = {}
    queue: list[Place] = list(_reach((module, name), packages))
    ran: set[str] = set()
    while queue:
        module, name = queue.pop()
        if f"{module}:{name}" in seen:
            continue
        if name == COMPILED:
            seen[f"{module}:{name}"] = _digest_of_file(module)
            continue
        facts = _facts(module)
        if module not in ran:
            ran.add(module)
            if not _is_ours(module):
                require_bound(module, facts)
            queue.extend((run, EFFECTS) for run in _run_by(module, facts, packages))
        part = facts.effects if name == EFFECTS else facts.definitions[name]
        if part is None:
            continue
        seen[f"{module}:{name}"] = _digest_of(facts, part)
        queue.extend(_references(module, part, packages))
        if not _is_ours(module):
            queue.extend((run, EFFECTS) for run in _modules_of(part.run, packages))
    return CodeFingerprint(dict(sorted(seen.items())))


def _digest_of(facts: SourceFacts, part: Definition) -> str:
    bound = sorted(set(_bound(facts, part)))
    return part.digest + (f"{WITH_IMPORTS}{digest(bound)[:8]}" if bound else "")


def _digest_of_file(module: str) -> str:
    return hashlib.sha256(_place_of(module).read_bytes()).hexdigest()[:16]


def packages_of(imported: Iterable[Target], is_installed: Callable[[str], bool]) -> frozenset[str]:
    """First parts of the names of the modules that imports lead to, over modules that are no installed ones;
    nothing is imported for it.

    Args:
        imported: where to begin.
        is_installed: of a first part, whether it is left out.
    """
    left, seen, found = list(imported), set[str](), set[str]()
    while left:
        target, inner = left.pop()
        parts = target.split(".") + ([] if inner in (None, ALL) else [str(inner)])
        if not target or is_installed(parts[0]):
            continue
        found.add(parts[0])
        for name in (".".join(parts[:n]) for n in range(1, len(parts) + 1)):
            if name not in seen and _has_source(name):
                seen.add(name)
                left.extend(_facts(name).imported)
    return frozenset(found)


def other_code(definitions: Mapping[str, str]) -> str | None:
    """The first of these definitions, by `module:name` and its digest, that is none of ours and has another
    digest in this process, or is not there; None if all are as they were."""
    for known, wanted in definitions.items():
        module, _, name = known.partition(":")
        if _is_ours(module):
            continue
        if name == COMPILED:
            now = _digest_of_file(module) if _is_module(module) else None
        else:
            facts = _facts(module) if _has_source(module) else None
            part = None
            if facts is not None:
                part = facts.effects if name == EFFECTS else facts.definitions.get(name)
            now = None if facts is None or part is None else _digest_of(facts, part)
        if now != wanted:
            return known
    return None


def forget_others() -> None:
    """Look at modules that are none of ours anew; one that was reloaded since counts as loaded now."""
    _note_loaded()
    # None of ours leads to others, and each experiment that is read asks for this: what is known of ours
    # stays.
    for name in [name for name in (*_MODULES, *_IS_MODULE) if not _is_ours(name)]:
        _MODULES.pop(name, None)
        _IS_MODULE.pop(name, None)
    for one in [one for one in _FINGERPRINTS if not _is_ours(one[0])]:
        _FINGERPRINTS.pop(one, None)
    for entry in [entry for entry in _REACHED if not entry[0]]:
        _REACHED.pop(entry, None)
    # Of thousands of modules hardly any was reloaded, so that each takes no line of Python.
    # A copy, since other threads note what they load.
    before = dict(_SPECS)
    now = list(map(getattr, map(sys.modules.get, before), repeat("__spec__"), repeat(None)))
    for name, spec in compress(zip(before, now, strict=True), map(is_not, now, before.values())):
        if spec is not None:
            _SPECS[name], _LOADED[name] = spec, time.time()


def _forget_what_follows() -> None:
    _IS_MODULE.clear()
    _REACHED.clear()
    _FINGERPRINTS.clear()


def _run_by(module: str, facts: SourceFacts, packages: tuple[str, ...]) -> Iterator[str]:
    """Modules of the packages that run when a module is imported: itself, and what its imports name.

    Of our own modules what plain imports name alone: none of ours has an effect beyond that (a test). Of
    others also packages around them, and what `from` imports name.
    """
    yield module
    if _is_ours(module):
        yield from (run for run in facts.run if _is_project(run, packages) and _has_source(run))
        return
    targets = {target for every in facts.imports.values() for target in every}
    yield from _modules_of(
        {*targets, *((run, None) for run in facts.run), (module, None)}, packages
    )


def _modules_of(targets: Iterable[Target], packages: tuple[str, ...]) -> Iterator[str]:
    """The modules that these imports run, packages around them included."""
    for target, inner in targets:
        parts = target.split(".") + ([] if inner in (None, ALL) else [str(inner)])
        for n in range(1, len(parts) + 1):
            if _is_project(name := ".".join(parts[:n]), packages) and _has_source(name):
                yield name


def _bound(facts: SourceFacts, part: Definition) -> Iterator[tuple[str, str, str]]:
    """The names of imports that a definition mentions: name, module, and the name there or nothing."""
    everything = (name for name in facts.imports if name.startswith(f"{ALL} "))
    for name in (*(first for first, *_ in part.names if first in facts.imports), *everything):
        for target, inner in facts.imports[name]:
            yield name, target, inner or ""


def _facts(module: str) -> SourceFacts:
    if module not in _MODULES:
        source = _SOURCES.get(module)
        source = _read(module, _place_of(module)) if source is None else source
        spec = _spec(module)
        is_package = spec is not None and spec.submodule_search_locations is not None
        _MODULES[module] = source_facts(source, module, is_package)
    return _MODULES[module]


def _read(module: str, path: Path) -> str:
    """The source of a module; refused if an older one is running, as a key would name code that does not
    run."""
    if _LOADED.get(module, math.inf) < path.stat().st_mtime <= time.time():
        again = "" if _is_ours(module) else _RELOAD
        raise InputError(
            f"{path} was changed after this process had loaded it, so keys would not say what runs; "
            f"{again}start Python again"
        )
    _READ[module] = path, time.time()
    source = path.read_text(encoding="utf-8")
    if not _is_ours(module):
        require_as_written(module, source)
    return source


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is; unlike `importlib.util.find_spec`, this imports no package on the way."""
    if (loaded := sys.modules.get(name)) is not None:
        return getattr(loaded, "__spec__", None)
    package, _, _ = name.rpartition(".")
    if not package:
        return importlib.util.find_spec(name)  # by any finder, such as an editable installation's
    outer = _spec(package)
    inside = None if outer is None else outer.submodule_search_locations
    if inside is None:
        return None
    try:
        return PathFinder.find_spec(name, inside)
    except KeyError:
        # A folder without an `__init__` in a package that is not imported.
        found = (FileFinder(folder, *_LOADERS).find_spec(name) for folder in inside)
        return next((spec for spec in found if spec is not None), None)


def _is_project(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def _place_of(module: str) -> Path:
    spec = _spec(module)
    assert spec is not None, f"{module} cannot be imported"
    assert spec.origin is not None, f"{module} has no file"
    return Path(spec.origin)


def _is_ours(module: str) -> bool:
    return module == _OURS or module.startswith(f"{_OURS}.")


def _is_module(name: str) -> bool:
    """Whether it is one, or a package without an `__init__`."""
    if name not in _IS_MODULE:
        spec = _spec(name)
        _IS_MODULE[name] = spec is not None and (
            spec.origin is not None or spec.submodule_search_locations is not None
        )
    return _IS_MODULE[name]


def _has_source(name: str) -> bool:
    spec = _spec(name) if name in _SOURCES or _is_module(name) else None
    if spec is None or spec.origin is None:
        return False
    return name in _SOURCES or spec.origin.endswith(tuple(SOURCE_SUFFIXES))


def _reach(names: tuple[str, ...], packages: tuple[str, ...]) -> tuple[Place, ...]:
    """The definitions that a module and names in it lead to, followed through imports: several where branches
    bind a name to several things, all of a module that stands for itself, none outside the packages."""
    known = _REACHED.setdefault((_is_ours(names[0]), packages), {})
    if names not in known:
        known[names] = tuple(dict.fromkeys(_followed(names, packages, set())))
    return known[names]


def _followed(
    names: tuple[str, ...], packages: tuple[str, ...], seen: set[tuple[str, ...]]
) -> Iterator[Place]:
    if names in seen:
        return  # modules may import each other
    seen.add(names)
    module, *rest = names
    if not (_is_project(module, packages) and _is_module(module)):
        return
    if not _has_source(module):
        spec = _spec(module)
        if spec is not None and spec.origin is not None:
            yield module, COMPILED
        elif rest:
            yield from _followed((f"{module}.{rest[0]}", *rest[1:]), packages, seen)
        return
    facts = _facts(module)
    if not rest:
        yield from ((module, defined) for defined in facts.definitions)
        return
    first, *more = rest
    if first in facts.definitions:
        yield module, first
    for target, inner in facts.imports.get(first, ()):
        named = () if inner is None else (inner,)
        if (target, *named) == (module, first):
            continue  # a package that imports a module of its own, which is followed below
        yield from _followed((target, *named, *more), packages, seen)
    if first not in facts.definitions and first not in facts.imports:
        for targets in facts.imports.values():
            for target, inner in targets:
                if inner == ALL:
                    yield from _followed((target, *rest), packages, seen)
    if _is_module(f"{module}.{first}") and not _binds(facts, module, first):
        yield from _followed((f"{module}.{first}", *more), packages, seen)


def _binds(facts: SourceFacts, package: str, name: str) -> bool:
    """Whether a package binds the name of one of its modules to something else, as in
    `from package.name import name`."""
    bound = facts.imports.get(name, ((package, name),))
    return name in facts.definitions or (package, name) not in bound


def _references(module: str, read: Definition, packages: tuple[str, ...]) -> Iterator[Place]:
    """What a definition mentions."""
    for names in read.names:
        yield from _reach((module, *names), packages)
    for target, inner, rest in read.imported:
        yield from _reach((target, *(() if inner is None else (inner,)), *rest), packages)
