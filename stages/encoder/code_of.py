"""A digest of the code that makes vectors, to tell encoders of different versions apart."""

from collections.abc import Iterable

from permafrost.stages.extraction.facts import PACKAGES
from permafrost.stages.kinds import kinds_in
from permafrost.stages.plugins import packages
from permafrost.storage.fingerprint import fingerprint


def code_of(configs: Iterable[object], *classes: type) -> list[str]:
    """Digests of what the kinds in some configs and further classes reach, of ours and of plug-ins."""
    reached = {*classes, *kinds_in(tuple(configs))}
    return sorted(fingerprint(one, (*PACKAGES, *packages())).digest for one in reached)
