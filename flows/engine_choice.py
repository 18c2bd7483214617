"""Which engine runs an experiment, by the name that people write."""

from dataclasses import dataclass

from permafrost.storage.errors import InputError
from permafrost.storage.quoting import quoted

NAMES = "serial, prefect, dask and dask=tcp://host:port"


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


def parse_engine(name: object) -> EngineChoice:
    """The engine of a name.

    Raises:
        InputError: there is none of this name, or the scheduler's address is none.
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
            if not all(address.partition("://")):
                raise InputError(
                    f"the scheduler's address is {quoted(address)}; write dask=tcp://host:port, as 'dask "
                    "scheduler' prints it"
                )
            return Dask(address)
        case _:
            raise InputError(f"there is no engine {quoted(name)}; there are {NAMES}")
