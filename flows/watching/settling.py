"""Looking until two looks agree: what changes between them is still being written."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from prefect.logging import get_run_logger

from permafrost.flows.deployed.flow_run import sleep
from permafrost.flows.running import Checked
from permafrost.flows.watching.named_files import Stamps
from permafrost.flows.watching.news import News
from permafrost.storage.errors import InputError


@dataclass(frozen=True)
class Look:
    """What a look at the texts of an experiment came to."""

    holds: str | tuple[type[InputError], Stamps]
    """Equal in two looks between which nothing was written."""
    seen: tuple[Checked, News] | None = None
    """The experiment and what is new, if its texts could be read."""
    error: InputError | None = None
    """Why they could not."""
    is_written: bool = False
    """Whether somebody is still writing them."""

    @property
    def is_final(self) -> bool:
        """Whether looking again would tell no more."""
        return self.is_written or (self.seen is not None and not self.seen[1].nodes)


def settled(look: Callable[[], Look], settle_s: float) -> Look:
    """The last of two looks in a row that agree, with a while between them; of three at most.

    Raises:
        InputError: in both of them, and no file was written between them.
    """
    now = look()
    while not now.is_final:
        if now.error is not None:
            get_run_logger().info("looking again in %g s: %s", settle_s, now.error)
        sleep(settle_s)
        before, now = now, look()
        if now.holds == before.holds:
            if now.error is not None:
                raise now.error
            return now
        # Somebody was in the middle of a line perhaps, and has ended it: that is the first of two looks.
        if not (now.is_final or (before.error is not None and now.error is None)):
            return replace(now, is_written=True)
    return now
