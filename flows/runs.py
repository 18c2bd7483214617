"""Which artifacts the latest run of each experiment used: the roots of garbage collection."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from storage.durable import read_json, write_json
from storage.errors import CorruptDataError


class RunRecord(BaseModel):
    """The latest complete run of one experiment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    experiment: str
    finished: str
    artifacts: tuple[str, ...]
    stores: tuple[str, ...]


def write_run(home: Path, record: RunRecord) -> None:
    """Replace the record of an experiment."""
    write_json(home / "runs" / f"{record.experiment}.json", record.model_dump(mode="json"))


def latest_runs(home: Path) -> Iterator[RunRecord]:
    """The latest run of every experiment under `home`.

    Raises:
        CorruptDataError: a record is damaged (garbage collection must not guess what it kept).
    """
    for path in sorted(home.glob("runs/*.json")):
        try:
            yield RunRecord.model_validate(read_json(path))
        except ValidationError as error:
            raise CorruptDataError(
                f"{path} is damaged; run the experiment again, or delete it"
            ) from error
