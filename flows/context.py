"""What a node needs to run: the home, the device, and what nodes of one process share."""

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from permafrost.flows.engine_choice import parse_engine
from permafrost.flows.gpu_lock import GpuLock
from permafrost.flows.graph import Input, Node, resolve
from permafrost.flows.home import home_url, open_home
from permafrost.flows.threads import n_cores, n_free_cores
from permafrost.stages.bounds import MAX_BYTES, MAX_LAYERS
from permafrost.stages.corpus.corpus import Corpus, stored_digests
from permafrost.stages.extraction.device import device_name
from permafrost.stages.extraction.lengths import KnownLengths
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget, target_of_identity
from permafrost.storage.adapted_stores import backbone_place
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.features.identity import FloatName, StoreIdentity
from permafrost.storage.features.layout import Codec
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.replica import replica_of

if TYPE_CHECKING:
    from permafrost.stages.extraction.backbone import Backbone
    from permafrost.stages.extraction.segment_pool import SegmentPool


LEAST_WORKER_BYTES = 600_000_000
"""Of a worker that has imported torch and transformers, with a margin."""


class RunRuntime(BaseModel):
    """How an experiment runs; none of it is part of any key."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    engine: str | None = None
    """What runs the stages: serial, prefect, dask or dask=tcp://host:port; None leaves it to the caller."""
    workers: int = Field(default=0, ge=0, le=MAX_LAYERS)
    """Number of stages run in parallel, and of processes of the engine `dask`; 0 for as many as cores are
    free when the run starts."""
    threads: int = Field(default=0, ge=0, le=MAX_LAYERS)
    """Threads of each stage; 0 for one, or all cores for a stage that runs the backbone on the CPU in one
    process."""
    worker_memory_bytes: int = Field(default=0, ge=0, le=MAX_BYTES)
    """Memory of each worker of the cluster that `dask` starts, 600 MB or more; 0 for its share of this
    machine's memory."""
    memory_bytes: int = Field(default=1 << 30, ge=1, le=MAX_BYTES)
    """Maximum features of one reader held in memory; larger ones are streamed in windows of segments."""
    device: str = "auto"
    """Where heads are trained and scored: auto, cpu, cuda, cuda:1, ..."""
    extract: ExtractRuntime = ExtractRuntime()
    """How the backbone is run."""

    @field_validator("engine")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None:
            parse_engine(name)
        return name

    @field_validator("worker_memory_bytes")
    @classmethod
    def _enough(cls, limit: int) -> int:
        # Dask pauses or ends a worker that holds more than that before it does anything, again and again.
        if 0 < limit < LEAST_WORKER_BYTES:
            raise ValueError(
                f"a worker of Dask needs more than that before it computes anything; give "
                f"{LEAST_WORKER_BYTES} or more, or 0 for its share of this machine's memory"
            )
        return limit

    def choose_workers(self) -> int:
        """Number of stages to run in parallel; if not set, depends on the present load of the machine."""
        return self.workers or max(1, n_free_cores() // max(1, self.threads))


class SharedBackbone:
    """A backbone that nodes of one process use in turn, loaded when it is first needed.

    While a node runs it on a GPU, no other process of ours does (flows.gpu_lock).
    """

    def __init__(self) -> None:
        self._loaded: tuple[tuple[str, str, str, str], Backbone] | None = None
        self._lock = threading.Lock()
        self._gpu = GpuLock()
        self._progress: Progress | None = None
        """Of the node that runs a backbone."""

    def begin(self, progress: Progress) -> None:
        """A node begins that runs a backbone: `progress` is told of waits for a GPU, until `release`."""
        self._progress = progress

    def load(
        self,
        target: ExtractTarget,
        device: str,
        dtype: FloatName | None = None,
        progress: Progress | None = None,
    ) -> "Backbone":
        """The backbone of `target`, in its own precision unless another is given; the last one is cached.

        Waits for a GPU that another process has, which `progress`, else that of the node, is told; held until
        `release`.
        """
        with self._lock:
            self._gpu.hold(device_name(device), progress or self._progress)
            return self._cached(target, device, dtype)

    def hold(self, device: str, progress: Progress) -> None:
        """Wait as `load` does, for a model that a node loads itself; held until `release`."""
        with self._lock:
            self._gpu.hold(device_name(device), progress)

    def weights(self, target: ExtractTarget, device: str) -> "Backbone":
        """As `load`, to read weights and compute nothing: others may compute on the GPU meanwhile."""
        with self._lock:
            return self._cached(target, device, None)

    def _cached(self, target: ExtractTarget, device: str, dtype: FloatName | None) -> "Backbone":
        from permafrost.stages.extraction.backbone import load_backbone

        dtype = dtype or target.identity.compute_dtype
        files = target.files
        wanted = (files.weights_digest, files.tokenizer_digest, dtype, device)
        if self._loaded is None or self._loaded[0] != wanted:
            self._loaded = None  # freed before another one is loaded
            self._loaded = wanted, load_backbone(target.files, dtype, device)
        return self._loaded[1]

    def own(
        self, target: ExtractTarget, device: str, progress: Progress | None = None
    ) -> "Backbone":
        """A backbone that no other node reads, so that the caller may change it; frees the shared one.

        Waits as `load` does.
        """
        from permafrost.stages.extraction.backbone import load_backbone

        self.drop()
        with self._lock:
            self._gpu.hold(device_name(device), progress or self._progress)
        return load_backbone(target.files, target.identity.compute_dtype, device)

    def release(self) -> None:
        """A node has ended: let other processes have the GPU, with its memory if one waits for it."""
        with self._lock:
            if self._gpu.is_wanted:
                self._free()
            self._gpu.release()
            self._progress = None

    def drop(self) -> None:
        """Free its memory."""
        with self._lock:
            self._free()
            self._gpu.release()

    def _free(self) -> None:
        loaded, self._loaded = self._loaded, None
        if loaded is not None and loaded[1].device.type == "cuda":
            import torch

            del loaded
            torch.cuda.empty_cache()  # torch keeps what it frees, which other processes cannot use then


class BackboneSource(BaseModel):
    """Where to find the backbone of a recorded identity; needed to run, but never part of a key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    revision: str
    codec: Codec
    """Codec of a store that has to be created again."""


class RunContext:
    """The home and the device of a run, and what its nodes share in this process.

    It is pickled as the home's URL and the runtime settings: another process opens the home again, on another
    machine through its own replica, and sees everything published before.

    Args:
        home: a folder, or a URL, see `open_home`.
        runtime: settings of the run.
    """

    def __init__(self, home: str | Path, runtime: RunRuntime) -> None:
        self.home, self.runtime = open_home(home, SilentProgress()), runtime
        """`home` is its folder here; for a home on an object store the folder that mirrors it."""
        self.artifacts = ArtifactStore(self.home)
        self.backbone = SharedBackbone()
        self.segments: SegmentPool | None = None
        """Who computes segments of features; None: this process. An engine sets it."""
        self.built: dict[str, Corpus] = {}
        """Corpora that were built but not yet published, by node."""
        self.lengths = KnownLengths()
        """Of texts that were tokenised for plans."""
        self._corpora: dict[tuple[str, str], Corpus] = {}
        self._targets: dict[str, ExtractTarget] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the corpora read for checks, which are large; a node reads what it needs.
        return RunContext, (self.url, self.runtime)

    @property
    def url(self) -> str:
        """The URL or path from which another process, on any machine, opens the home."""
        return home_url(self.home)

    def refresh(self) -> None:
        """Fetch what other machines have published in a home on an object store."""
        if replica_of(self.home) is not None:
            open_home(self.url, SilentProgress())

    @property
    def device(self) -> str:
        """Where heads are trained and scored."""
        return device_name(self.runtime.device)

    def device_of(self, node: Node) -> str:
        """The kind of device that a node computes on: cpu, cuda, ..."""
        runtime = self.runtime
        name = runtime.extract.device if node.resources.backbone else runtime.device
        return device_name(name).partition(":")[0]

    def wants_the_machine(self, node: Node) -> bool:
        """Whether a node uses all cores by itself, as it runs the backbone without a GPU."""
        return node.resources.backbone and device_name(self.runtime.extract.device) == "cpu"

    def in_the_way(self, one: Node, other: Node) -> bool:
        """Whether two nodes cannot run side by side in one process."""
        if self.wants_the_machine(one) or self.wants_the_machine(other):
            return True
        return one.resources.backbone and other.resources.backbone

    def threads_of(self, node: Node) -> int:
        """Number of torch threads in a node. It depends on its kind, the machine and the settings, not on
        other nodes running, as it can change the last digits of results."""
        return self.runtime.threads or (self.all_threads if self.wants_the_machine(node) else 1)

    @property
    def all_threads(self) -> int:
        """One per core, unless torch is limited to fewer (`OMP_NUM_THREADS`)."""
        import torch

        return min(n_cores(), torch.get_num_threads())

    def open(self, source: Input) -> Path:
        """The verified folder of an artifact.

        Raises:
            NotFoundError: it is not published.
            CorruptDataError: one of its files is damaged.
        """
        return self.artifacts.open(parse_ref(source.ref))

    def load(self, source: Input) -> Any:
        """Load an artifact with its loader; raises as `open`."""
        return resolve(source.loader)(self.open(source))

    def corpus(self, source: Input) -> Corpus:
        """A corpus, cached because many nodes read the same one. Raises as `open`."""
        # One with graphs may also be read as a plain one.
        name = source.loader, source.ref
        with self._lock:
            corpus = self._corpora.get(name)
        if corpus is None:
            corpus = self.load_corpus(source)
            with self._lock:
                self._corpora[name] = corpus
        return corpus

    def stored_digests(self, source: Input) -> Iterable[Sequence[str]] | None:
        """The digests of a corpus' texts, in blocks; None if it is not published. Raises as `open`."""
        with self._lock:
            corpus = self._corpora.get((source.loader, source.ref))
        if corpus is not None:
            return (corpus.digests,)
        return stored_digests(self.open(source)) if RunContext.is_known(self, source) else None

    def is_known(self, source: Input) -> bool:
        """Whether a corpus is available now; False for one that only a run can build, before it has."""
        return self.artifacts.is_done(parse_ref(source.ref))

    def load_corpus(self, source: Input) -> Corpus:
        """Load a corpus from its artifact."""
        return self.load(source)

    def target(
        self, identity: StoreIdentity, arrays: tuple[str, ...], where: BackboneSource
    ) -> ExtractTarget:
        """The target of an extraction into the store of `identity`; the backbone's files are hashed once.

        Raises:
            NotFoundError: an adapted backbone is not in the home any more.
            IdentityMismatchError: the backbone found at its source is a different one; the message has both
                digests.
        """
        key = f"{identity.store_id} {where.model_dump_json()}"
        with self._lock:
            if key not in self._targets:
                found = target_of_identity(
                    identity,
                    arrays,
                    backbone_place(self.home, where.source),
                    where.revision,
                    where.codec,
                    f"{identity.store_id[:12]} (backbone looked for at {where.source})",
                )
                # As it is recorded: the folder of an adapted one moves with the home.
                files = replace(found.files, source=where.source)
                self._targets[key] = replace(found, files=files)
        return replace(self._targets[key], arrays=arrays)

    def bare_target(self, node: Node) -> ExtractTarget:
        """The backbone and recipe that a node names, for work without a store."""
        identity = StoreIdentity.model_validate(node.run_facts["identity"])
        return self.target(identity, (), BackboneSource.model_validate(node.run_facts["backbone"]))
