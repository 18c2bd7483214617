"""Which engine runs an experiment, by the name that people write."""

from dataclasses import dataclass
from importlib.metadata import entry_points

from permafrost.storage.errors import InputError
from permafrost.storage.nearest import nearest
from permafrost.storage.quoting import quoted

NAMES = "serial, prefect, dask and dask=tcp://host:port"
_SCHEMES = ("tcp", "tls", "ws", "wss", "ucx", "inproc")
"""Dask's own; packages may add others to `_MORE_SCHEMES`."""
_MORE_SCHEMES = "distributed.comm.backends"


@dataclass(frozen=True)
class Serial:
    """One node after the other, in this process."""


@dataclass(frozen=True)
class Prefect:
    """Nodes are task runs of Prefect, in threads of this process."""


@dataclass(frozen=True)
class Dask:
    """Task runs of Prefect that worker processes compute."""

    scheduler: str | None = None
    """Address of one that runs; None starts a cluster on this machine for as long as the run lasts."""


EngineChoice = Serial | Prefect | Dask


def schemes() -> tuple[str, ...]:
    """How an address of a scheduler may begin."""
    more = sorted(entry_points(group=_MORE_SCHEMES).names.difference(_SCHEMES))
    return (*_SCHEMES, *more)


def parse_engine(name: object) -> EngineChoice:
    """The engine of a name.

    Raises:
        InputError: there is none of this name, or the scheduler's address is none that Dask knows.
    """
    match name:
        case "serial":
            return Serial()
        case "prefect":
            return Prefect()
        case "dask":
            return Dask()
        case str() if name.startswith("dask="):
            address = name.removeprefix("dask=")
            scheme, *rest = address.partition("://")
            if not (scheme and all(rest)):
                raise InputError(
                    f"the scheduler's address is {quoted(address)}; write dask=tcp://host:port, as 'dask "
                    "scheduler' prints it"
                )
            if scheme not in (known := schemes()):
                raise InputError(
                    f"the scheduler's address {quoted(address)} begins with {quoted(scheme)}, which Dask "
                    f"does not know{nearest(scheme, known)}; it knows {', '.join(known)}"
                )
            return Dask(address)
        case _:
            raise InputError(f"there is no engine {quoted(name)}; there are {NAMES}")
