"""What a module's source defines and mentions, by top-level name: what fingerprints are made of.

Reading it off the syntax trees of a few hundred modules takes seconds. So it is kept in the user's cache
folder (`storage.kept`), with the digest of the source that it was read from: a file of another source,
another version of Python or another version of this module is not used, whatever the times of files say.
"""

import ast
import contextlib
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from permafrost.storage.kept import keep, kept
from permafrost.storage.syntax_trees import syntax_tree

READER = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
"""Digest of this module: what another version of it has read off the same source may differ."""
Names = tuple[str, ...]
"""Parts of a dotted name: `("poolings", "mean")` for `poolings.mean`."""
Target = tuple[str, str | None]
"""A module and a name in it; None for the module itself."""
ALL = "*"
"""In a target: every name of the module."""


@dataclass(frozen=True)
class Definition:
    """A definition's digest, and what it mentions."""

    digest: str
    names: frozenset[Names]
    imported: frozenset[tuple[str, str | None, Names]]
    """The same for names bound by an import inside the definition, each with the module and its name
    there."""
    run: frozenset[Target] = frozenset()
    """Whatever imports inside the definition name, mentioned or not."""


@dataclass(frozen=True)
class SourceFacts:
    """The top-level names of one module."""

    definitions: Mapping[str, Definition]
    imports: Mapping[str, tuple[Target, ...]]
    """By local name, all that branches bind it to; those of `from a import *` by `* a`."""
    run: frozenset[str]
    """Modules that `import a.b` runs, whatever name it binds."""
    effects: Definition | None
    """Statements that run at import and bind nothing (registrations)."""

    @property
    def imported(self) -> frozenset[Target]:
        """Whatever imports name, anywhere in the module."""
        at_top = {target for every in self.imports.values() for target in every}
        inside = {target for one in self.definitions.values() for target in one.run}
        return frozenset({*at_top, *inside, *((name, None) for name in self.run)})


def source_facts(source: str, module: str, is_package: bool) -> SourceFacts:
    """What a source defines and mentions: as it was kept, or read and then kept.

    Args:
        source: of the module.
        module: its dotted name, from which relative imports count.
        is_package: whether it is the `__init__` of a package.

    Raises:
        SyntaxError: the source is not Python.
    """
    made_from = [
        READER,
        *sys.version_info[:2],
        is_package,
        hashlib.sha256(source.encode()).hexdigest(),
    ]
    if (fields := kept("code", module, made_from)) is not None:
        return SourceFacts(
            {name: _definition(one) for name, one in fields["definitions"].items()},
            {
                name: tuple((target, inner) for target, inner in targets)
                for name, targets in fields["imports"].items()
            },
            frozenset(fields["run"]),
            None if fields["effects"] is None else _definition(fields["effects"]),
        )
    facts = _read(source, module if is_package else module.rpartition(".")[0])
    fields = {
        "definitions": {name: _plain(one) for name, one in facts.definitions.items()},
        "imports": facts.imports,
        "run": sorted(facts.run),
        "effects": None if facts.effects is None else _plain(facts.effects),
    }
    keep("code", module, made_from, fields)
    return facts


def _definition(fields: Sequence[Any]) -> Definition:
    digest, names, imported, run = fields
    return Definition(
        digest,
        frozenset(map(tuple, names)),
        frozenset((module, name, tuple(rest)) for module, name, rest in imported),
        frozenset((module, name) for module, name in run),
    )


def _plain(one: Definition) -> list[Any]:
    return [one.digest, list(one.names), list(one.imported), list(one.run)]


@dataclass(frozen=True)
class _Found:
    """Top-level statements of a module, by what they bind."""

    package: str
    """From which relative imports count."""
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict[str, list[ast.stmt]])
    imports: dict[str, dict[Target, None]] = field(default_factory=dict[str, dict[Target, None]])
    run: set[str] = field(default_factory=set[str])
    effects: list[ast.stmt] = field(default_factory=list[ast.stmt])


def _read(source: str, package: str) -> SourceFacts:
    found = _Found(package)
    _collect(syntax_tree(source).body, found)
    return SourceFacts(
        {name: _defined(statements, package) for name, statements in found.definitions.items()},
        {name: tuple(targets) for name, targets in found.imports.items()},
        frozenset(found.run),
        _defined(found.effects, package) if found.effects else None,
    )


def _collect(statements: Sequence[ast.stmt], found: _Found) -> None:
    for statement in statements:
        match statement:
            case ast.Import() | ast.ImportFrom():
                _add(found, _imported(statement, found.package))
                if isinstance(statement, ast.Import):
                    found.run.update(a.name for a in statement.names)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                found.definitions.setdefault(name, []).append(statement)
                _add(found, _global_imports(statement, found.package))
            case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                _bind(statement, found)
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                # Its body never runs; where its names stand in annotations, they are followed.
                _collect(_nested(statement), found)
            case _ if not _is_string(statement):
                # A top-level if, try, for or with is an effect, and what it binds is a definition too.
                found.effects.append(statement)
                _collect(_nested(statement), found)
            case _:
                pass


def _nested(statement: ast.stmt) -> list[ast.stmt]:
    inner: list[ast.stmt] = []
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.stmt):
            inner.append(child)
        elif isinstance(child, ast.ExceptHandler | ast.match_case):
            inner.extend(child.body)
    return inner


def _add(found: _Found, imports: Mapping[str, Target]) -> None:
    for name, target in imports.items():
        found.imports.setdefault(name, {})[target] = None


def _global_imports(function: ast.stmt, package: str) -> dict[str, Target]:
    """What functions import for the whole module, by `global`."""
    declared = {
        n for node in ast.walk(function) if isinstance(node, ast.Global) for n in node.names
    }
    if not declared:
        return {}
    return {
        name: target
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name, target in _imported(node, package).items()
        if name in declared
    }


def _imported(statement: ast.Import | ast.ImportFrom, package: str) -> dict[str, Target]:
    """What an import binds in a module of `package`, by local name."""
    if isinstance(statement, ast.Import):
        # Without `as`, only the first part of a dotted name is bound.
        pairs = [(a.asname or a.name.split(".")[0], a) for a in statement.names]
        return {name: (a.name if a.asname else name, None) for name, a in pairs}
    parts = package.split(".")
    base = ".".join(parts[: len(parts) - statement.level + 1]) if statement.level else ""
    full = ".".join(p for p in (base, statement.module) if p)
    return {
        f"{ALL} {full}" if a.name == ALL else a.asname or a.name: (full, a.name)
        for a in statement.names
    }


def _bind(statement: ast.stmt, found: _Found) -> None:
    bound = [
        n.id
        for n in ast.walk(statement)
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    ]
    for name in bound:
        found.definitions.setdefault(name, []).append(statement)
    if not bound:
        found.effects.append(statement)


def _defined(statements: Sequence[ast.stmt], package: str) -> Definition:
    names, imported = set[Names](), set[tuple[str, str | None, Names]]()
    run = set[Target]()
    for statement in statements:
        local = _local_imports(statement, package)
        run.update(_run_inside(statement, package))
        for first, *rest in _mentioned(statement):
            # Another function of a class may mean the module's own name.
            names.add((first, *rest))
            imported.update((*target, tuple(rest)) for target in local.get(first, ()))
    return Definition(_digest(statements), frozenset(names), frozenset(imported), frozenset(run))


def _run_inside(statement: ast.stmt, package: str) -> Iterator[Target]:
    """Whatever imports inside functions name."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            yield from ((a.name, None) for a in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _imported(node, package).values()


def _local_imports(statement: ast.stmt, package: str) -> dict[str, set[Target]]:
    """Imports inside functions; a name may be imported from several modules, in branches."""
    out: dict[str, set[Target]] = {}
    for node in ast.walk(statement):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name, target in _imported(node, package).items():
                out.setdefault(name, set()).add(target)
    return out


def _mentioned(statement: ast.stmt) -> Iterator[Names]:
    """Every dotted name as a whole: `a.b.c` is none of `a.b`, nor of `a`."""
    left: list[ast.AST] = [statement]
    while left:
        node = left.pop()
        if names := _dotted(node):
            yield names
            continue
        if isinstance(node, ast.AnnAssign):
            left.extend(_quoted_types(node.annotation))
        left.extend(ast.iter_child_nodes(node))


def _quoted_types(annotation: ast.expr) -> Iterator[ast.AST]:
    """The types that a field's annotation names in quotation marks."""
    for node in ast.walk(annotation):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            # Other words are of no type, as in Literal["span"], and mean nothing here.
            with contextlib.suppress(SyntaxError, ValueError):
                yield syntax_tree(node.value.strip())


def _dotted(node: ast.AST) -> Names:
    """The parts of `a` or `a.b.c`; empty for any other expression."""
    if isinstance(node, ast.Name):
        return (node.id,)
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return (*base, node.attr)
    return ()


def _digest(statements: Sequence[ast.stmt]) -> str:
    # unparse, not dump, as its text does not depend on the node fields of a Python version.
    text = "\n".join(ast.unparse(_without_docstrings(s)) for s in statements)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_docstrings(statement: ast.stmt) -> ast.stmt:
    """A copy of a statement as its digest reads it, with f-strings as calls with their parts."""
    copy = syntax_tree(ast.unparse(statement)).body[0]
    # Not by recursion, whose depth a long `elif` would use up.
    left: list[ast.AST] = [copy]
    while left:
        node = left.pop()
        for name, value in ast.iter_fields(node):
            if isinstance(value, list):
                several = [_without_f(v) for v in cast(list[object], value)]
                if name == "body":
                    several = [v for v in several if not _is_string(v)] or [ast.Pass()]
                setattr(node, name, several)
            else:
                setattr(node, name, _without_f(value))
        left.extend(ast.iter_child_nodes(node))
    return copy


def _without_f(node: object) -> object:
    """An f-string as a call with its parts: versions of Python write other quotes around and inside it."""
    if isinstance(node, ast.FormattedValue):
        spec = ast.Constant(None) if node.format_spec is None else node.format_spec
        return ast.Tuple([node.value, ast.Constant(node.conversion), spec])
    if not isinstance(node, ast.JoinedStr):
        return node
    parts, text = list[ast.expr](), ""
    for value in node.values:
        if isinstance(value, ast.Constant):
            text += cast(str, value.value)
            continue
        parts += [ast.Constant(text), value]
        text = ""
    return ast.Call(ast.Name("f"), [*parts, ast.Constant(text)], [])


def _is_string(node: object) -> bool:
    """A bare string statement: a docstring, or the documentation of a field."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
