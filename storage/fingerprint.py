"""Code fingerprint: a digest of the project functions that an entry point actually reaches.

Only the parsed syntax counts; comments, docstrings and formatting do not. Names are followed through module
globals, imports between project packages and attribute access on imported modules; classes are included
whole. A choice by string at run time cannot be followed, so a registry must be a module-level table that
names its members, which are then all reached.
"""

import ast
import hashlib
import importlib.util
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest

Definition = tuple[str, str]
"""Module and top-level name."""


_SOURCES: dict[str, str] = {}
"""Sources of modules that were loaded from memory, or reloaded after an edit."""
_LOADED: dict[str, float] = {}
"""When a module was first seen to be loaded, in seconds since the epoch."""


def use_source(module: str, source: str) -> None:
    """Fingerprint `module` by this source, which is the one that runs, instead of its file."""
    if _SOURCES.get(module) != source:
        _SOURCES[module] = source
        _MODULES.pop(module, None)
        _IS_MODULE.clear()
        _RESOLVED.clear()
        _FINGERPRINTS.clear()


@dataclass(frozen=True)
class _Module:
    """Top-level names of one project module."""

    is_package: bool
    definitions: dict[str, list[ast.stmt]]
    imports: dict[str, tuple[str, str | None]]
    """Local name to (module, name in it); None for the module itself."""
    effects: list[ast.stmt] = field(default_factory=list[ast.stmt])
    """Statements that run at import and bind nothing (registrations)."""
    read: dict[str | None, "_Read"] = field(default_factory=dict[str | None, "_Read"])
    """What was read of each definition by name, and of the effects under None."""


@dataclass(frozen=True)
class _Read:
    """A definition's digest, and what it mentions."""

    digest: str
    names: frozenset[tuple[str, ...]]
    """Dotted names: `("poolings", "mean")` for `poolings.mean`."""
    imported: frozenset[tuple[str, str | None, tuple[str, ...]]]
    """The same for names bound by an import inside the definition, each with the module and its name
    there."""


@dataclass(frozen=True)
class CodeFingerprint:
    """Digests of the reached definitions, so that a change can be named."""

    definitions: dict[str, str]
    """`module:name` to digest."""

    @property
    def digest(self) -> str:
        """32 hex digits over all definitions."""
        return digest(self.definitions)


def fingerprint(entry: Callable[..., object], packages: Sequence[str]) -> CodeFingerprint:
    """Fingerprint the code that `entry` reaches inside `packages` (dotted names, including submodules).

    Raises:
        InputError: a file was changed after it had been imported.
    """
    # Called a few times per node, with thousands of modules loaded.
    if len(sys.modules) != len(_LOADED):
        for name in set(sys.modules) - _LOADED.keys():
            _LOADED[name] = time.time()
    found = _fingerprint(entry.__module__, entry.__qualname__.split(".")[0], tuple(packages))
    assert found.definitions, f"{entry!r} is not defined at the top level of a module of {packages}"
    return found


_MODULES: dict[str, _Module] = {}
_IS_MODULE: dict[str, bool] = {}
_RESOLVED: dict[tuple[str, ...], dict[Definition, Definition | None]] = {}
"""Resolved definitions by packages."""
_FINGERPRINTS: dict[tuple[str, str, tuple[str, ...]], CodeFingerprint] = {}


def _fingerprint(module: str, name: str, packages: tuple[str, ...]) -> CodeFingerprint:
    entry = module, name, packages
    if entry not in _FINGERPRINTS:
        _FINGERPRINTS[entry] = _reached(*entry)
    return _FINGERPRINTS[entry]


def _reached(module: str, name: str, packages: tuple[str, ...]) -> CodeFingerprint:
    seen: dict[str, str] = {}
    queue: list[Definition] = [(module, name)]
    while queue:
        module, name = queue.pop()
        found = _resolve(module, name, packages)
        if found is None or f"{found[0]}:{found[1]}" in seen:
            continue
        parts: dict[str, str | None] = {found[1]: found[1]}
        if _parse(found[0]).effects:
            parts["(import effects)"] = None
        for shown, part in parts.items():
            read = _read_definition(found[0], part)
            seen[f"{found[0]}:{shown}"] = read.digest
            queue.extend(set(_references(found[0], read, packages)))
    return CodeFingerprint(dict(sorted(seen.items())))


def _digest(statements: Sequence[ast.stmt]) -> str:
    # unparse, not dump, as its text does not depend on the node fields of a Python version.
    text = "\n".join(ast.unparse(_without_docstrings(s)) for s in statements)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_docstrings(statement: ast.stmt) -> ast.stmt:
    copy = ast.parse(ast.unparse(statement)).body[0]
    for node in ast.walk(copy):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = [s for s in cast(list[ast.stmt], body) if not _is_string(s)]
            node.body = kept or [ast.Pass()]  # pyright: ignore[reportAttributeAccessIssue]
    return copy


def _is_string(node: ast.stmt) -> bool:
    """A bare string statement: a docstring, or the documentation of a field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _parse(module: str) -> _Module:
    if module not in _MODULES:
        _MODULES[module] = _parsed(module)
    return _MODULES[module]


def _parsed(module: str) -> _Module:
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"{module} cannot be imported"
    assert spec.origin is not None, f"{module} has no source"
    source = _SOURCES.get(module)
    tree = ast.parse(_read(module, Path(spec.origin)) if source is None else source)
    is_package = spec.submodule_search_locations is not None
    found = _Module(is_package, {}, {})
    _collect(tree.body, _package(module, is_package), found)
    return found


def _read(module: str, path: Path) -> str:
    """The source of a module; refused if an older one is running, as a key would name code that does not
    run."""
    if _LOADED.get(module, math.inf) < path.stat().st_mtime <= time.time():
        raise InputError(
            f"{path} was changed after this process had loaded it, so keys would not say what runs; start "
            "Python again"
        )
    return path.read_text(encoding="utf-8")


def _collect(statements: Sequence[ast.stmt], package: str, found: _Module) -> None:
    for statement in statements:
        match statement:
            case ast.Import() | ast.ImportFrom():
                found.imports.update(_imported(statement, package))
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                found.definitions.setdefault(name, []).append(statement)
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                _bind(statement, found)
            case _ if not _is_string(statement):
                # A top-level if, try, for or with is an effect, and what it binds is a definition too.
                found.effects.append(statement)
                _collect(_nested(statement), package, found)
            case _:
                pass


def _nested(statement: ast.stmt) -> list[ast.stmt]:
    inner: list[ast.stmt] = []
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            inner.append(child)
        elif isinstance(child, ast.ExceptHandler):
            inner.extend(child.body)
    return inner


def _package(module: str, is_package: bool) -> str:
    return module if is_package else module.rpartition(".")[0]


def _imported(
    statement: ast.Import | ast.ImportFrom, package: str
) -> dict[str, tuple[str, str | None]]:
    """The names that an import binds in a module of `package`, as in `_Module.imports`."""
    if isinstance(statement, ast.Import):
        # Without `as`, only the first part of a dotted name is bound.
        pairs = [(a.asname or a.name.split(".")[0], a) for a in statement.names]
        return {name: (a.name if a.asname else name, None) for name, a in pairs}
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - statement.level + 1]) if statement.level else ""
    full = ".".join(p for p in (base, statement.module) if p)
    return {a.asname or a.name: (full, a.name) for a in statement.names}


def _bind(statement: ast.stmt, found: _Module) -> None:
    bound = [
        n.id
        for n in ast.walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    for name in bound:
        found.definitions.setdefault(name, []).append(statement)
    if not bound:
        found.effects.append(statement)


def _is_project(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == p or module.startswith(f"{p}.") for p in packages)


def _is_module(name: str) -> bool:
    if name not in _IS_MODULE:
        try:
            spec = importlib.util.find_spec(name)
        except ModuleNotFoundError:
            spec = None
        _IS_MODULE[name] = spec is not None and spec.origin is not None
    return _IS_MODULE[name]


def _resolve(module: str, name: str, packages: tuple[str, ...]) -> Definition | None:
    """Follow re-exports to where `name` is defined; None outside the project or for modules."""
    known = _RESOLVED.setdefault(packages, {})
    if (module, name) not in known:
        known[module, name] = _followed(module, name, packages)
    return known[module, name]


def _followed(module: str, name: str, packages: tuple[str, ...]) -> Definition | None:
    while _is_project(module, packages) and _is_module(module):
        parsed = _parse(module)
        if name in parsed.definitions:
            return module, name
        if name not in parsed.imports:
            return None
        target, inner = parsed.imports[name]
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
    parsed = _parse(package)
    return name in parsed.definitions or parsed.imports.get(name, (package, name)) != (
        package,
        name,
    )


def _read_definition(module: str, name: str | None) -> _Read:
    """Digest and references of a definition, or of a module's import effects (None)."""
    parsed = _parse(module)
    if name not in parsed.read:
        statements = parsed.effects if name is None else parsed.definitions[name]
        names, imported = set[tuple[str, ...]](), set[tuple[str, str | None, tuple[str, ...]]]()
        for statement in statements:
            local = _local_imports(module, statement)
            nodes = ast.walk(statement)
            for node in (n for n in nodes if isinstance(n, ast.Name | ast.Attribute)):
                match _dotted(node):
                    case (first, *rest) if first in local:
                        imported.add((*local[first], tuple(rest)))
                    case (first, *rest):
                        names.add((first, *rest))
                    case _:
                        pass
        parsed.read[name] = _Read(_digest(statements), frozenset(names), frozenset(imported))
    return parsed.read[name]


def _dotted(node: ast.AST) -> tuple[str, ...]:
    """The parts of `a` or `a.b.c`; empty for any other expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return (*base, node.attr)
    return ()


def _references(module: str, read: _Read, packages: tuple[str, ...]) -> list[Definition]:
    """The references of a definition, as (module, name) pairs to resolve."""
    found: list[Definition] = []
    imports = _parse(module).imports
    for first, *rest in read.names:
        if not rest:
            found.append((module, first))
        elif first in imports:
            found.extend(_attribute(*imports[first], rest, packages))
    for target, inner, rest in read.imported:
        if rest:
            found.extend(_attribute(target, inner, rest, packages))
        elif inner is not None:
            found.append((target, inner))
    return found


def _attribute(
    module: str, name: str | None, rest: Sequence[str], packages: tuple[str, ...]
) -> list[Definition]:
    """The definition that `poolings.mean` refers to if `poolings` is a project module; else empty."""
    path = module if name is None else f"{module}.{name}"
    for part in rest[:-1]:
        if not (_is_project(path, packages) and _is_module(path)):
            return []
        path = f"{path}.{part}"
    return [(path, rest[-1])] if _is_project(path, packages) and _is_module(path) else []


def _local_imports(module: str, statement: ast.stmt) -> dict[str, tuple[str, str | None]]:
    """Imports inside functions."""
    package = _package(module, _parse(module).is_package)
    out: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            out.update(_imported(node, package))
    return out
