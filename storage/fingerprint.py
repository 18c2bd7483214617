"""Code fingerprint: a digest of the project functions that an entry point actually reaches.

Only the parsed syntax counts; comments, docstrings and formatting do not. Names are followed through module
globals, imports between project packages and attribute access on imported modules; classes are included
whole, and so is a module that is passed on as a value. What imports bind the names of a module to counts by
name, outside the packages too. A choice by string at run time cannot be followed, so a registry must be a
module-level table that names its members, which are then all reached.
"""

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import Lock

from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest
from permafrost.storage.source_facts import ALL, Definition, SourceFacts, source_facts

Place = tuple[str, str]
"""Module and top-level name."""
EFFECTS = "(import effects)"
"""In the place of a name: what a module does when it is imported."""
WITH_IMPORTS = "+"
"""Between the digest of a definition and that of what imports bind of the names that it mentions, which
earlier versions did not record."""


_SOURCES: dict[str, str] = {}
"""Sources of modules that were loaded from memory, or reloaded after an edit."""
_READ: dict[str, tuple[Path, float]] = {}
"""The file of a module and when it was read, in seconds since the epoch."""
_LOADED: dict[str, float] = {}
"""When a module was first seen to be loaded, in seconds since the epoch."""
_LOADING = Lock()
"""Held while the modules of a node are imported. An import that fails in one thread leaves half a module to
another one, and Python before 3.11.8 cannot parse sources in two threads, as import hooks do that check
types."""


def use_source(module: str, source: str) -> None:
    """Fingerprint `module` by this source, which is the one that runs, instead of its file."""
    if _SOURCES.get(module) != source:
        _SOURCES[module] = source
        _MODULES.pop(module, None)
        _IS_MODULE.clear()
        _RESOLVED.clear()
        _FINGERPRINTS.clear()


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
        return digest(self.definitions)


def fingerprint(entry: Callable[..., object] | str, packages: Sequence[str]) -> CodeFingerprint:
    """Fingerprint the code that `entry` reaches inside `packages` (dotted names, including submodules).

    Args:
        entry: a class or function, or the import path of one (`module:name`), which is not imported for it.
        packages: whose code counts.

    Raises:
        InputError: a file was changed after it had been imported.
    """
    # Called a few times per node, with thousands of modules loaded.
    if len(sys.modules) != len(_LOADED):
        for name in set(sys.modules) - _LOADED.keys():
            _LOADED[name] = time.time()
    if isinstance(entry, str):
        module, _, name = entry.partition(":")
    else:
        module, name = entry.__module__, entry.__qualname__
    found = _fingerprint(module, name.split(".")[0], tuple(packages))
    assert found.definitions, f"{entry!r} is not defined at the top level of a module of {packages}"
    return found


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
_RESOLVED: dict[tuple[str, ...], dict[Place, Place | None]] = {}
"""Resolved names by packages."""
_FINGERPRINTS: dict[tuple[str, str, tuple[str, ...]], CodeFingerprint] = {}


def _fingerprint(module: str, name: str, packages: tuple[str, ...]) -> CodeFingerprint:
    entry = module, name, packages
    if entry not in _FINGERPRINTS:
        _FINGERPRINTS[entry] = _reached(*entry)
    return _FINGERPRINTS[entry]


def _reached(module: str, name: str, packages: tuple[str, ...]) -> CodeFingerprint:
    seen: dict[str, str] = {}
    queue: list[Place] = [(module, name)]
    while queue:
        module, name = queue.pop()
        found = (module, name) if name == EFFECTS else _resolve(module, name, packages)
        if found is None or f"{found[0]}:{found[1]}" in seen:
            continue
        facts = _facts(found[0])
        part = facts.effects if name == EFFECTS else facts.definitions[found[1]]
        if part is None:
            continue
        bound = sorted(set(_bound(facts, part)))
        seen[f"{found[0]}:{found[1]}"] = part.digest + (
            f"{WITH_IMPORTS}{digest(bound)[:8]}" if bound else ""
        )
        queue.extend(set(_references(found[0], part, packages)))
        queue.extend((run, EFFECTS) for run in (found[0], *_run_by(facts, packages)))
    return CodeFingerprint(dict(sorted(seen.items())))


def _run_by(facts: SourceFacts, packages: tuple[str, ...]) -> Iterator[str]:
    """Modules of the packages that a module's plain imports run."""
    return (run for run in facts.run if _is_project(run, packages) and _is_module(run))


def _bound(facts: SourceFacts, part: Definition) -> Iterator[tuple[str, str, str]]:
    """The names of imports that a definition mentions: name, module, and the name there or nothing."""
    everything = (name for name, (_, inner) in facts.imports.items() if inner == ALL)
    for name in (*(first for first, *_ in part.names if first in facts.imports), *everything):
        target, inner = facts.imports[name]
        yield name, target, inner or ""


def _facts(module: str) -> SourceFacts:
    if module not in _MODULES:
        spec = _spec(module)
        assert spec is not None, f"{module} cannot be imported"
        assert spec.origin is not None, f"{module} has no source"
        source = _SOURCES.get(module)
        source = _read(module, Path(spec.origin)) if source is None else source
        is_package = spec.submodule_search_locations is not None
        _MODULES[module] = source_facts(source, module, is_package)
    return _MODULES[module]


def _read(module: str, path: Path) -> str:
    """The source of a module; refused if an older one is running, as a key would name code that does not
    run."""
    if _LOADED.get(module, math.inf) < path.stat().st_mtime <= time.time():
        raise InputError(
            f"{path} was changed after this process had loaded it, so keys would not say what runs; start "
            "Python again"
        )
    _READ[module] = path, time.time()
    return path.read_text(encoding="utf-8")


def _spec(name: str) -> ModuleSpec | None:
    """Where a module is; unlike `importlib.util.find_spec`, this imports no package on the way."""
    if (loaded := sys.modules.get(name)) is not None:
        return getattr(loaded, "__spec__", None)
    package, _, _ = name.rpartition(".")
    if not package:
        return PathFinder.find_spec(name)
    outer = _spec(package)
    inside = None if outer is None else outer.submodule_search_locations
    return None if inside is None else PathFinder.find_spec(name, inside)


def _is_project(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def _is_module(name: str) -> bool:
    if name not in _IS_MODULE:
        spec = _spec(name)
        _IS_MODULE[name] = spec is not None and spec.origin is not None
    return _IS_MODULE[name]


def _resolve(module: str, name: str, packages: tuple[str, ...]) -> Place | None:
    """Follow re-exports to where `name` is defined; None outside the project or for modules."""
    known = _RESOLVED.setdefault(packages, {})
    if (module, name) not in known:
        known[module, name] = _followed(module, name, packages)
    return known[module, name]


def _followed(module: str, name: str, packages: tuple[str, ...]) -> Place | None:
    while _is_project(module, packages) and _is_module(module):
        facts = _facts(module)
        if name in facts.definitions:
            return module, name
        if name not in facts.imports:
            everything = (target for target, inner in facts.imports.values() if inner == ALL)
            found = (_resolve(target, name, packages) for target in everything)
            return next((place for place in found if place is not None), None)
        target, inner = facts.imports[name]
        if inner is None or (
            _is_module(f"{target}.{inner}") and not _binds(target, inner, packages)
        ):
            return None
        module, name = target, inner
    return None


def _binds(package: str, name: str, packages: tuple[str, ...]) -> bool:
    """Whether a package binds the name of one of its modules to something else, as in
    `from package.name import name`."""
    if not (_is_project(package, packages) and _is_module(package)):
        return False
    facts = _facts(package)
    return name in facts.definitions or facts.imports.get(name, (package, name)) != (
        package,
        name,
    )


def _references(module: str, read: Definition, packages: tuple[str, ...]) -> list[Place]:
    """The references of a definition, as (module, name) pairs to resolve."""
    found: list[Place] = []
    imports = _facts(module).imports
    for first, *rest in read.names:
        found.append((module, first))
        if first in imports:
            found.extend(_attribute(*imports[first], rest, packages))
    for target, inner, rest in read.imported:
        if inner is not None:
            found.append((target, inner))
        found.extend(_attribute(target, inner, rest, packages))
    return found


def _attribute(
    module: str, name: str | None, rest: Sequence[str], packages: tuple[str, ...]
) -> list[Place]:
    """The definition that `poolings.mean` refers to if `poolings` is a project module, or all those of a
    module that stands for itself; else empty."""
    path = module
    for part in (name, *rest) if name is not None else rest:
        if not (_is_project(path, packages) and _is_module(path)):
            return []
        if not _is_module(f"{path}.{part}") or _binds(path, part, packages):
            return [(path, part)]
        path = f"{path}.{part}"
    is_ours = _is_project(path, packages) and _is_module(path)
    return [(path, defined) for defined in _facts(path).definitions] if is_ours else []
