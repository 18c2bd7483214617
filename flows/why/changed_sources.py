"""How the data of a corpus differ from those of an earlier one."""

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from permafrost.flows.why.changed_fields import Change, Leaf, listed
from permafrost.flows.why.changed_texts import CorpusParts, compare_texts
from permafrost.storage.artifacts import Manifest
from permafrost.storage.quoting import visible

_DIGEST = (".sha256", ".format")


def source_changes(
    task: str,
    leaves: Sequence[Leaf],
    sections: tuple[Mapping[str, Any], Mapping[str, Any]],
    parts: Sequence[CorpusParts | None],
    published: Manifest | None,
) -> list[Change]:
    """One change for all files whose content differs: `train.csv: 50 texts new, 3 gone`.

    Args:
        task: its name.
        leaves: digests that differ.
        sections: of the task in the earlier experiment and in this one.
        parts: both corpora, as far as they are there; without both, nothing is counted.
        published: the earlier corpus.
    """
    names = list(dict.fromkeys(_named(leaf, sections) for leaf in leaves))
    subject = f"{task}: {listed(names)}" if task else listed(names)
    old, new = parts
    if old is not None and new is not None:
        counts = compare_texts(old, new)
        text = str(counts) or "changed, with the same texts and labels of texts"
        text = f"{subject}: {text}" if str(counts) else f"{subject} {text}"
        return [Change(text, "texts", None, dict(vars(counts)))]
    return [Change(f"{subject} changed{_times(leaves, sections[1], published)}", "texts")]


def _named(leaf: Leaf, sections: Sequence[Mapping[str, Any]]) -> str:
    """The file that a digest is of, as people call it."""
    old, new = (_written(leaf, section) for section in sections)
    if new is None:
        return leaf.path.removesuffix(".sha256")
    names = [visible(Path(p).name or p) for p in (old, new) if p is not None]
    return " -> ".join(dict.fromkeys(names))


def _written(leaf: Leaf, section: Mapping[str, Any]) -> str | None:
    """What the section of a task has where its facts have a digest: the path of a file."""
    path = leaf.path
    for end in _DIGEST:
        path = path.removesuffix(end)
    parts = path.split(".")
    # Sources with a field for each file put their digests together under `files`.
    hub = [*parts[:-2], "path"] if parts[-2:-1] == ["source"] else []
    for names in (parts, parts[1:], hub):
        value: Any = section
        for name in names:
            value = cast(Mapping[str, Any], value).get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str):
            return value
    return None


def _times(leaves: Sequence[Leaf], section: Mapping[str, Any], published: Manifest | None) -> str:
    """What is known of a file without the texts that it had."""
    paths = [Path(p) for leaf in leaves if (p := _written(leaf, section)) is not None]
    files = [p for p in paths if p.is_file()]
    when = "" if published is None else str(published.provenance.get("published", ""))
    told: list[str] = []
    if len(files) == 1:
        facts = files[0].stat()
        at = datetime.datetime.fromtimestamp(facts.st_mtime, datetime.UTC)
        told.append(f"{facts.st_size:,} bytes of {at.isoformat(sep=' ', timespec='minutes')[:16]}")
    if when:
        told.append(f"read before at {when[:16].replace('T', ' ')}")
    return f" ({'; '.join(told)})" if told else ""
