"""What differs between two artifacts of a stage besides what they are made from and their code."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from permafrost.flows.origin import WEIGHTS_OF, Origin
from permafrost.flows.why.changed_fields import ABSENT, Change, Leaf, changed_leaves, listed, said
from permafrost.flows.why.changed_identity import SourceOf, identity_changes, identity_field
from permafrost.flows.why.changed_sources import source_changes
from permafrost.flows.why.changed_texts import CorpusParts
from permafrost.storage.artifacts import ArtifactSpec, Manifest

_WRAPPED = re.compile(r"^(?:finetune\.|score\.|fit\.|embedding\.method\.|vectors\[\d+\]\.)+")
"""What stages put around the section of a method."""
_OPAQUE = re.compile(r"[0-9a-f]{16,}")
_NOT_MADE_FROM = {"tasks", "prompts", WEIGHTS_OF}
"""Fields of a method that say where it is used, and what is told by the corpora of a score."""


@dataclass(frozen=True)
class Side:
    """One of two artifacts that are compared."""

    spec: ArtifactSpec
    origin: Origin
    published: Manifest | None
    """None before it is made."""


@dataclass(frozen=True)
class Compared:
    """What is known beside manifests."""

    texts: Callable[[str], CorpusParts | None]
    """The texts of a corpus by its `<stage>/<key>`; None if they are not there."""
    source_of: SourceOf


def own_changes(old: Side, new: Side, known: Compared) -> list[Change]:
    """What differs in the config of a stage, in the words of the experiment."""
    if old.spec.config == new.spec.config:
        return []
    by_stage = {"corpus": _corpus, "extract": _extraction, "report": _report}
    return by_stage.get(new.spec.stage, _section)(old, new, known)


def _section(old: Side, new: Side, known: Compared) -> list[Change]:
    """Of a method, a pretraining, a probe: fields of its section."""
    leaves = changed_leaves(old.spec.config, new.spec.config)
    inside = {leaf.path: field for leaf in leaves if (field := identity_field(leaf.path))}
    identity = {
        inside[i.path]: Leaf(inside[i.path], i.old, i.new) for i in leaves if i.path in inside
    }
    plain = [
        Leaf(_WRAPPED.sub("", leaf.path), leaf.old, leaf.new)
        for leaf in leaves
        if leaf.path not in inside and not leaf.path.endswith("made_from")
    ]
    name = new.origin.name or new.origin.task or ""
    return [
        *identity_changes([*identity.values()], "", known.source_of),
        *fields_changed(name, plain, old.origin.written, new.origin.written),
    ]


def fields_changed(
    name: str, leaves: Sequence[Leaf], old: Mapping[str, Any], new: Mapping[str, Any]
) -> list[Change]:
    """Fields of a config that differ, by their paths in the section of the experiment that it comes from, as
    far as both sections are known.

    Args:
        name: of what the section is about.
        leaves: fields of the config.
        old: the section of the earlier artifact.
        new: that of the later one.
    """
    sections = changed_leaves(old, new) if old and new else []
    sections = [s for s in sections if not {s.path, s.path.partition(".")[0]} & _NOT_MADE_FROM]
    matched = [s for s in sections if any(_is_of(leaf, s) for leaf in leaves)]
    if leaves and not matched:
        matched = sections
    values = [(s.old, s.new) for s in matched]
    rest = [
        leaf
        for leaf in leaves
        if not any(_is_of(leaf, s) for s in matched) and (leaf.old, leaf.new) not in values
    ]
    if matched is sections and matched:
        rest = []
    return [_field(name, leaf) for leaf in (*matched, *rest)]


def _is_of(leaf: Leaf, section: Leaf) -> bool:
    """Whether a field of a config comes from a field of a section: `layer` also from `grid.layer`."""
    return section.name == leaf.name or section.path.endswith(leaf.path)


def _field(name: str, leaf: Leaf) -> Change:
    if leaf.path == "task.mteb":
        return said("", Leaf("mteb", leaf.old, leaf.new))
    if any(_OPAQUE.fullmatch(str(v).rpartition("/")[2]) for v in (leaf.old, leaf.new)):
        path = leaf.path.removesuffix(".sha256")
        return Change(f"{name}: {path} changed", path, leaf.old, leaf.new)
    return said(name, leaf)


def _corpus(old: Side, new: Side, known: Compared) -> list[Change]:
    leaves = changed_leaves(old.spec.config, new.spec.config)
    opaque = [leaf for leaf in leaves if _OPAQUE.search(f"{leaf.old} {leaf.new}")]
    files = {leaf.path.rpartition(".")[0] for leaf in opaque}
    plain = [
        leaf
        for leaf in leaves
        if leaf not in opaque
        and not (leaf.name == "format" and leaf.path.rpartition(".")[0] in files)
    ]
    task, sections = new.origin.task or "", (old.origin.written, new.origin.written)
    changes = fields_changed(task, plain, *sections) if plain else []
    if opaque:
        parts = [known.texts(str(side.spec.ref)) for side in (old, new)]
        changes += source_changes(task, opaque, sections, parts, old.published)
    return changes


def _extraction(old: Side, new: Side, known: Compared) -> list[Change]:
    before, after = (cast(list[str], side.spec.config["arrays"]) for side in (old, new))
    changes: list[Change] = []
    for what, some, others in (("added", after, before), ("removed", before, after)):
        if arrays := [a for a in some if a not in others]:
            layers = "layer" if len(arrays) == 1 else "layers"
            text = f"{layers} {listed(arrays)} {what}"
            changes.append(Change(text, "capture", None, arrays))
    stores = changed_leaves(old.spec.config["store"], new.spec.config["store"])
    return [*identity_changes(stores, new.origin.name or "", known.source_of), *changes]


def _report(old: Side, new: Side, known: Compared) -> list[Change]:
    before, after = old.spec.config, new.spec.config
    changes: list[Change] = []
    for what in ("method", "task", "seed"):
        had, has = (dict.fromkeys(str(c.get(what)) for c in r["cells"]) for r in (before, after))
        changes += _named(what, had, has)
    if not changes:
        # All of them were there, but not on the same tasks.
        changes += _named(
            "score", *(dict.fromkeys(map(_scored, r["cells"])) for r in (before, after))
        )
    for field, what in (("probes", "probe"), ("pretrainings", "name")):
        had, has = (dict.fromkeys(str(c.get(what)) for c in r[field]) for r in (before, after))
        changes += _named(field.removesuffix("s"), had, has)
    shown = [{k: r[k] for k in ("name", "report")} for r in (before, after)]
    changes += [said("", leaf) for leaf in changed_leaves(*shown)]
    rows = {_cell(c): c for c in before["cells"]}
    for cell in after["cells"]:
        earlier = rows.get(_cell(cell), cell)
        kept = [{k: c.get(k) for k in ("role", "category", "loss")} for c in (earlier, cell)]
        changes += [said(cell["method"], leaf) for leaf in changed_leaves(*kept)]
    if before["page"] != after["page"]:
        changes.append(Change("template or style of the page changed", "page"))
    return changes


def _scored(cell: Mapping[str, Any]) -> str:
    return f"of {cell.get('method')} on {cell.get('task')}"


def _cell(cell: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(cell.get(name) for name in ("method", "task", "seed"))


def _named(what: str, old: Iterable[str], new: Iterable[str]) -> list[Change]:
    before, after = list(old), list(new)
    changes: list[Change] = []
    for how, some, others in (("added", after, before), ("removed", before, after)):
        if names := [n for n in some if n not in others]:
            text = f"{what}{'' if len(names) == 1 else 's'} {listed(names)} {how}"
            changes.append(Change(text, f"{what}s", ABSENT, names))
    return changes
