"""Statistics of a whole feature store, by Dask: workers add up what they read, and nothing is loaded whole.

A flow of Prefect with prefect-dask's task runner, which lists the cells; the sums over cells are tasks of its
cluster and no task runs, as a store may have a million of them.
"""

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from operator import add
from typing import Any
from urllib.parse import urlsplit

from dask.base import annotate
from distributed import Client, Future, wait
from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.settings import (
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    get_current_settings,
    temporary_settings,
)
from prefect_dask.task_runners import DaskTaskRunner
from prefect_dask.utils import get_dask_client

from permafrost.flows.engine.cluster import Cluster
from permafrost.flows.engine_choice import Dask
from permafrost.flows.graph import Resources
from permafrost.flows.home import open_home
from permafrost.flows.server.api import prefect_api
from permafrost.stages.embed.config import WhiteningConfig
from permafrost.stages.embed.whitening import Whitening
from permafrost.stages.extraction.capture import in_order
from permafrost.stages.statistics import (
    ArrayStatistics,
    Moments,
    moments_of,
    no_moments,
    statistics_of,
    whitening,
)
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.features.layout import SPAN, widen
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.progress import Progress, SilentProgress

PARTS = 8
"""Sums of an array for each worker: enough that none waits long for the last."""
ROWS = 8192
"""Rows that are read together."""
LOOK_S = 0.2

Segments = tuple[int, ...]


@dataclass(frozen=True)
class StoreStatistics:
    """What was found in a feature store."""

    store_id: str
    n_segments: int
    """Of the store."""
    cells: dict[str, int]
    """Segments that hold an array, by array; the others were left out."""
    arrays: dict[str, ArrayStatistics] = field(default_factory=dict)
    whitenings: dict[str, Whitening] = field(default_factory=dict)
    """Fitted on all rows of an array, where they were asked for."""


def require_reachable(where: Dask) -> None:
    """Refuse workers that cannot reach Prefect's server.

    Raises:
        InputError: they may be on other machines, and the server would be ours, on this one.
    """
    host = urlsplit(where.scheduler or "").hostname
    if host in (None, "127.0.0.1", "localhost", "::1"):
        return
    if get_current_settings().api.url is None:
        raise InputError(
            f"workers of {where.scheduler} tell Prefect's server what they do, and PREFECT_API_URL is not "
            "set: start a server that they can reach ('prefect server start') and set it, here and there"
        )


def store_statistics(
    home: str,
    store_id: str,
    arrays: Sequence[str],
    cluster: Cluster,
    progress: Progress,
    whiten: WhiteningConfig | None = None,
) -> StoreStatistics:
    """Statistics of the tokens that poolings run over, and of pooled arrays' rows.

    Args:
        home: its URL, which workers open too.
        store_id: whole.
        arrays: names of arrays with columns.
        cluster: of workers.
        progress: receives every segment of every array.
        whiten: fit whitening on the rows of each array.

    Raises:
        NotFoundError: no cell of these arrays is there.
        InputError: whitening to more components than there are directions.
        CorruptDataError: a cell is damaged.
        ClusterGoneError: its scheduler is gone, or there is no worker that can be used.
    """
    address: str = cluster.start().scheduler_info()["address"]
    runner: Any = DaskTaskRunner(address=address)
    mine = _CLUSTER.set((cluster, progress))
    try:
        with prefect_api(), temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
            return statistics.with_options(task_runner=runner)(
                home, store_id, tuple(arrays), whiten
            )
    finally:
        _CLUSTER.reset(mine)
        progress.finish()


_CLUSTER: ContextVar[tuple[Cluster, Progress]] = ContextVar("_CLUSTER")
"""Of the flow under way; no parameter of it, as prefect-dask sends those to workers."""


@flow(name="statistics", persist_result=False)
def statistics(
    home: str, store_id: str, arrays: tuple[str, ...], whiten: WhiteningConfig | None
) -> StoreStatistics:
    """See `store_statistics`."""
    # Alone: prefect-dask sends a flow's own lines to workers with all that they name.
    return _computed(home, store_id, arrays, whiten)


def _computed(
    home: str, store_id: str, arrays: tuple[str, ...], whiten: WhiteningConfig | None
) -> StoreStatistics:
    cluster, progress = _CLUSTER.get()
    needs = cluster.needs(Resources())
    with annotate(resources=needs):
        n_segments, cells = cells_of.submit(home, store_id, arrays).result()
    counts = {array: len(segments) for array, segments in cells.items()}
    found = StoreStatistics(store_id, n_segments, counts)
    progress.start("statistics", sum(counts.values()), "segments")
    with get_dask_client() as workers, workers.as_current():
        sums = _Sums(workers, needs, cluster, progress)
        for array, segments in cells.items():
            total = sums.total((home, store_id, array), segments)
            found.arrays[array], map_ = sums.result(total, whiten)
            if map_ is not None:
                found.whitenings[array] = map_
    rows = [{"array": name, **vars(summary)} for name, summary in found.arrays.items()]
    create_table_artifact(rows, key=f"statistics-{store_id[:12]}")
    return found


@task(persist_result=False)
def cells_of(home: str, store_id: str, arrays: tuple[str, ...]) -> tuple[int, dict[str, Segments]]:
    """The number of segments of a store, and which of them hold each of these arrays.

    Raises:
        NotFoundError: none does.
    """
    store = _store(home, store_id)
    numbers, cells = store.segments(), dict[str, list[int]]()
    for number in numbers:
        for array in store.committed(number).intersection(arrays):
            cells.setdefault(array, []).append(number)
    if not cells:
        raise NotFoundError(
            f"no segment of the store {store_id[:12]} holds {', '.join(arrays)} (any more)"
        )
    return len(numbers), {array: tuple(cells[array]) for array in in_order(cells)}


class _Sums:
    """Sums over one array, added up two by two in workers."""

    def __init__(
        self, workers: Client, needs: dict[str, float], cluster: Cluster, progress: Progress
    ) -> None:
        self._workers, self._needs = workers, needs
        self._cluster, self._progress = cluster, progress

    def total(self, where: tuple[str, str, str], segments: Segments) -> Future:
        """The sum over segments, once all parts have ended."""
        n_parts = min(len(segments), PARTS * self._cluster.n_workers)
        parts = [segments[i::n_parts] for i in range(n_parts)]
        level = [self._submit(_moments, *where, part) for part in parts]
        under_way = dict(zip(level, parts, strict=True))
        while len(level) > 1:
            level = [
                self._submit(add, *level[i : i + 2]) if i + 1 < len(level) else level[i]
                for i in range(0, len(level), 2)
            ]
        while under_way:
            # What has ended is let go, so that workers keep sums only that are still to be added.
            for part in self._ended(list(under_way)):
                self._progress.advance(len(under_way.pop(part)))
        return level[0]

    def result(
        self, total: Future, whiten: WhiteningConfig | None
    ) -> tuple[ArrayStatistics, Whitening | None]:
        """What follows from the sums, which stay where they are."""
        last = self._submit(_finished, total, whiten)
        while not self._ended([last]):
            pass
        return last.result()

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future:
        return self._workers.submit(function, *arguments, resources=self._needs, pure=False)

    def _ended(self, futures: list[Future]) -> list[Future]:
        """Those that have ended, after a moment; raises what a worker raised."""
        self._cluster.require_workers()
        try:
            ended: Any = wait(futures, timeout=LOOK_S, return_when="FIRST_COMPLETED")
        except TimeoutError:
            return []
        for future in ended.done:
            if future.status == "error":
                future.result()
        return list(ended.done)


def _store(home: str, store_id: str) -> FeatureStore:
    return FeatureStore.open(store_folder(open_home(home, SilentProgress()), store_id))


def _moments(home: str, store_id: str, array: str, segments: Segments) -> Moments:
    """Sums over the rows of some segments; in a worker."""
    store = _store(home, store_id)
    spec = store.spec(array)
    assert spec.width is not None, "cells_of gives arrays with columns only"
    found = no_moments(spec.width)
    for number in segments:
        n_rows = store.segment(number).rows(spec.axis)
        shard = store.reopen_shard(number, array)
        shard.will_need()
        span = store.reopen_shard(number, SPAN.name) if spec.axis == SPAN.axis else None
        for start in range(0, n_rows, ROWS):
            stop = min(start + ROWS, n_rows)
            rows = widen(shard.read(start, stop), spec.dtype)
            found = found + moments_of(rows if span is None else rows[span.read(start, stop)])
    return found


def _finished(
    total: Moments, whiten: WhiteningConfig | None
) -> tuple[ArrayStatistics, Whitening | None]:
    return statistics_of(total), None if whiten is None else whitening(total, whiten)
