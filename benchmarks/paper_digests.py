"""Digests of what a run of an experiment file scores, and of what its claims test, which tell whether the
file has changed since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from permafrost.flows.experiment import Experiment
from permafrost.flows.experiment_files.overrides import overridden
from permafrost.flows.experiment_files.yaml_reader import read_yaml
from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest

UNSCORED = ("name", "codec", "runtime", "report")
"""Fields of an experiment that change no score; of `report`, those of `SCORED_IN_REPORT` do."""
SCORED_IN_REPORT = ("averages", "bootstrap")


@dataclass(frozen=True)
class FileDigests:
    """What a run of a file would be digested to."""

    rows: str | None
    """See `digest_of_rows`."""
    claims: Mapping[str, Sequence[str]] = field(default_factory=dict[str, Sequence[str]])
    """See `digests_of_claims`."""


def digest_of_rows(path: Path, changed: Sequence[str]) -> str | None:
    """Digest of the backbone, recipes, tasks, methods and other settings that a file is run with.

    Formatting, comments, anchors and the order of fields do not count; environment variables count by name.

    Args:
        path: YAML file.
        changed: what `--set` changes, as for `permafrost run`.

    Returns:
        32 hexadecimal digits, or None if the file does not take these changes.
    """
    if (fields := _fields(path, changed)) is None:
        return None
    report = fields.get("report", {})
    scored = {name: value for name, value in fields.items() if name not in UNSCORED}
    return digest([scored, {name: report[name] for name in SCORED_IN_REPORT if name in report}])


def digests_of_claims(path: Path, changed: Sequence[str]) -> dict[str, list[str]]:
    """By what claims of a file say, the digests of all else in them, in their order.

    Args:
        path: YAML file.
        changed: as for `digest_of_rows`; there are none if the file does not take it.
    """
    found: dict[str, list[str]] = {}
    for claim in (_fields(path, changed) or {}).get("report", {}).get("claims", ()):
        tested = {name: value for name, value in claim.items() if name != "says"}
        found.setdefault(claim["says"], []).append(digest(tested))
    return found


def with_digests(
    claims: Sequence[Mapping[str, Any]], tested: Mapping[str, Sequence[str]]
) -> list[dict[str, Any]]:
    """What came of claims, each with the digest of what it tested, where the file has as many that say so."""
    left = {
        says: list(digests)
        for says, digests in tested.items()
        if len(digests) == sum(claim["says"] == says for claim in claims)
    }
    return [
        {**claim, **({"digest": left[claim["says"]].pop(0)} if claim["says"] in left else {})}
        for claim in claims
    ]


def _fields(path: Path, changed: Sequence[str]) -> dict[str, Any] | None:
    """Of the file as it is run; None if it does not take these changes."""
    try:
        return overridden(read_yaml(path.read_text(), str(path)), changed, Experiment).fields
    except InputError:
        return None
