"""How a deployed run tells an error that is foreseen: in one line of its log, without a traceback."""

import logging
from collections.abc import Generator
from contextlib import contextmanager

from prefect.exceptions import SignatureMismatchError
from prefect.logging import get_run_logger

from permafrost.flows.quiet import is_foreseen
from permafrost.storage.errors import PermafrostError
from permafrost.storage.quoting import shortened

_LOGGERS = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")


def leave_tracebacks_out() -> None:
    """Have Prefect log no traceback of an error whose message says all there is to say."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_is_told)


@contextmanager
def told_in_a_line() -> Generator[None]:
    """For the inside of a flow run: an error that is foreseen is logged with its notes as one line."""
    try:
        yield
    except PermafrostError as error:
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        get_run_logger().error("%s", " ".join(shortened(f"{error}{notes}").split()))
        raise


def _is_told(record: logging.LogRecord) -> bool:
    """Whether a record is to be logged; a stage has no line of ours, and keeps its final state."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, SignatureMismatchError):
        # Such a run never comes as far as our code, and Prefect tells it twice.
        record.msg, record.args, record.exc_info = "%s", (str(error),), None
        return record.name != "prefect.engine"
    of_flow = record.name.startswith("prefect.flow_runs")
    return not (
        is_foreseen(record) or (of_flow and "Finished in state Failed" in record.getMessage())
    )
