"""A digest of the code that makes vectors, to tell encoders of different versions apart."""

from permafrost.stages.extraction.facts import PACKAGES
from permafrost.stages.kinds import kinds_in
from permafrost.stages.plugins import packages
from permafrost.storage.fingerprint import fingerprint


def code_of(cls: type | None, *configs: object) -> list[str]:
    """Digests of what a class and the kinds in some configs reach, of ours and of plug-ins."""
    reached = {*kinds_in(configs)} if cls is None else {cls, *kinds_in(configs)}
    return sorted(fingerprint(one, (*PACKAGES, *packages())).digest for one in reached)
