"""Who computes the segments of an extraction: this process, or others that are sent their tasks."""

import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol, runtime_checkable

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.computing import Computation
from permafrost.stages.extraction.files import ALIASES
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget, target_of_identity
from permafrost.stages.extraction.writing import WRITERS, DiskThread
from permafrost.stages.plugins import sources_of, use_sources
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.features.layout import Codec
from permafrost.storage.features.segment_drafts import Assignment, SealedSegment, SegmentDraft
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.progress import Progress
from permafrost.storage.side_by_side import Each, side_by_side

LoadBackbone = Callable[[ExtractTarget, str], Backbone]
"""The backbone of a target on a device; the last one is best kept, as the next task will want it, too."""


@dataclass(frozen=True)
class SegmentTask:
    """Cells of one segment and all that another process needs to compute them. Picklable."""

    cells: Assignment
    identity: StoreIdentity
    source: str
    """Where the backbone lies."""
    revision: str
    codec: Codec
    plugins: Mapping[str, str]
    """Sources of the plug-in that the recipe is of, by module."""
    runtime: ExtractRuntime

    @property
    def n_tokens(self) -> int:
        """Tokens that go through the backbone."""
        return self.cells.n_tokens

    @property
    def label(self) -> str:
        """For people."""
        return f"segment {self.cells.segment} of {self.identity.store_id[:12]}"


@runtime_checkable
class SegmentPool(Protocol):
    """Computes segments, wherever that is."""

    def compute(self, tasks: Iterable[SegmentTask], progress: Progress) -> Generator[SealedSegment]:
        """The draft of every task, in any order, as soon as it is sealed.

        Closed early, it stops what it has begun. What it gave is committed by the caller; a task that is
        computed twice may be given twice.

        Args:
            tasks: taken when somebody is free: texts are laid out only then.
            progress: told the tokens done.

        Raises:
            Exception: what computing a segment raised, the same class and message as in this process.
        """
        ...


class InProcess:
    """Computes segments in the calling thread, while a thread beside it writes and flushes the last one."""

    def __init__(self, target: ExtractTarget, backbone: Backbone, runtime: ExtractRuntime) -> None:
        self._target, self._backbone, self._runtime = target, backbone, runtime

    def compute(self, tasks: Iterable[SegmentTask], progress: Progress) -> Generator[SealedSegment]:
        """See `SegmentPool`; in the order of the tasks, which are of one store."""
        sealed: queue.SimpleQueue[SealedSegment] = queue.SimpleQueue()

        work: Computation | None = None

        def seal(draft: SegmentDraft, each: Each) -> None:
            sealed.put(draft.seal(each))

        try:
            with side_by_side(WRITERS[self._backbone.device.type]) as each, DiskThread() as disk:
                for task in tasks:
                    if work is None:
                        store = FeatureStore.open(task.cells.root, expect=self._target.identity)
                        work = Computation(
                            store,
                            self._target,
                            self._backbone,
                            self._runtime,
                            disk,
                            each,
                            progress,
                        )
                    draft = work.draft(task.cells)
                    for _ in work.fill(draft, task.cells):
                        yield from _ready(sealed)
                    disk.submit(partial(seal, draft, each))
        except Exception:
            # What is whole is not computed again because the next one failed.
            yield from _ready(sealed)
            raise
        yield from _ready(sealed)


def compute_segment(task: SegmentTask, load: LoadBackbone, progress: Progress) -> SealedSegment:
    """Compute a task in the process that it was sent to, up to a sealed draft.

    Args:
        task: from `task_of`.
        load: called with the task's target and device.
        progress: told the tokens done.

    Raises:
        NotFoundError: the store is not where the task says, seen from this process.
        IdentityMismatchError: the backbone found here is another one, or the recipe's plug-in.
        PermafrostError: the extraction has ended meanwhile; nothing was written.
    """
    use_sources(task.plugins)
    target = _target(task.identity.model_dump_json(), task.source, task.revision, task.codec)
    target = replace(target, arrays=task.cells.arrays)
    backbone = load(target, task.runtime.device)
    (sealed,) = InProcess(target, backbone, task.runtime).compute([task], progress)
    return sealed


def task_of(cells: Assignment, target: ExtractTarget, runtime: ExtractRuntime) -> SegmentTask:
    """The task that computes `cells`."""
    files = target.files
    # Another process may have another working folder; what comes as a package has a folder of its own there.
    is_folder = files.revision is None and files.source not in ALIASES
    return SegmentTask(
        cells=cells,
        identity=target.identity,
        source=str(files.folder) if is_folder else files.source,
        revision=files.revision or "main",
        codec=target.codec,
        plugins=dict(sources_of([target.recipe])),
        runtime=runtime,
    )


def _ready(sealed: "queue.SimpleQueue[SealedSegment]") -> Iterator[SealedSegment]:
    while not sealed.empty():
        yield sealed.get()


@lru_cache(maxsize=1)
def _target(identity: str, source: str, revision: str, codec: Codec) -> ExtractTarget:
    """Its tokenizer takes longer to load than a small segment to compute."""
    found = StoreIdentity.model_validate_json(identity)
    name = f"{found.store_id[:12]} (backbone looked for at {source})"
    return target_of_identity(found, (), source, revision, codec, name)
