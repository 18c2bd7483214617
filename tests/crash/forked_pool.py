"""A pool whose workers are processes of their own, some of which are killed while they compute."""

import os
import pickle
import random
import signal
import time
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

from permafrost.stages.extraction.backbone import Backbone
from permafrost.stages.extraction.segment_pool import SegmentTask, compute_segment
from permafrost.storage.features.segment_drafts import SealedSegment
from permafrost.storage.progress import Progress, SilentProgress


@dataclass
class ForkedPool:
    """Two workers at a time, forked for one segment each; the task of a killed one goes to the next."""

    backbone: Backbone
    rng: random.Random
    kill_share: float
    """Of workers that are killed after a random part of `segment_s`, finished or not; the first always is."""
    segment_s: float
    started: int = 0
    kills: int = 0
    _running: dict[int, tuple[int, bytes, float]] = field(default_factory=dict)
    """Pipe, task and time to kill it, by process."""

    def compute(self, tasks: Iterable[SegmentTask], progress: Progress) -> Generator[SealedSegment]:
        """See `SegmentPool`."""
        waiting, source = list[bytes](), iter(tasks)
        while True:
            while len(self._running) < 2:
                if not waiting and (task := next(source, None)) is not None:
                    waiting.append(pickle.dumps(task))
                if not waiting:
                    break
                self._start(waiting.pop())
            if not self._running:
                return
            pid, status, pipe, task = self._ended()
            with os.fdopen(pipe, "rb") as stream:
                content = stream.read()
            if os.WIFSIGNALED(status):
                # It may have sealed its draft, without having said so.
                self.kills += 1
                waiting.append(task)
                continue
            assert os.waitstatus_to_exitcode(status) == 0, f"worker {pid} failed by itself"
            yield pickle.loads(content)

    def _start(self, task: bytes) -> None:
        read, write = os.pipe()
        doomed = self.started == 0 or self.rng.random() < self.kill_share
        kill_at = time.monotonic() + (self.rng.uniform(0, self.segment_s) if doomed else 1e9)
        self.started += 1
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                # Among them the lease, which would live on with this process.
                os.closerange(3, write)
                os.closerange(write + 1, 1024)
                sealed = compute_segment(
                    pickle.loads(task), lambda target, device: self.backbone, SilentProgress()
                )
                while doomed and os.getppid() == parent:
                    time.sleep(0.01)
                with os.fdopen(write, "wb") as stream:
                    stream.write(pickle.dumps(sealed))
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        self._running[pid] = read, task, kill_at

    def _ended(self) -> tuple[int, int, int, bytes]:
        while True:
            for pid, (pipe, task, kill_at) in self._running.items():
                if time.monotonic() > kill_at:
                    os.kill(pid, signal.SIGKILL)
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    del self._running[pid]
                    return pid, status, pipe, task
            time.sleep(0.001)
