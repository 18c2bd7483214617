"""Items beside each other: as one after the other, and nothing is left running after an error."""

import threading
import time

import pytest

from permafrost.storage.side_by_side import side_by_side


@pytest.mark.parametrize("n_threads", [1, 3])
def test_results_come_in_the_order_of_the_items(n_threads: int) -> None:
    with side_by_side(n_threads) as each:
        assert each(lambda n: n * n, range(20)) == [n * n for n in range(20)]
        assert each(str, []) == []


def test_items_run_beside_each_other() -> None:
    """Each call waits for two others."""
    meeting = threading.Barrier(3, timeout=60)
    with side_by_side(3) as each:
        each(lambda _: meeting.wait(), range(3))
    assert meeting.n_waiting == 0


@pytest.mark.parametrize("n_threads", [1, 2])
def test_an_error_is_raised_when_no_call_is_running(n_threads: int) -> None:
    running = set[int]()

    def work(n: int) -> None:
        if n == 0:
            raise OSError(28, "No space left on device")
        running.add(n)
        time.sleep(0.05)
        running.remove(n)

    with side_by_side(n_threads) as each:
        with pytest.raises(OSError, match="No space left"):
            each(work, range(6))
        assert not running
