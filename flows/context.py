"""What running a node needs beside the node: the home, the device, and what nodes of one process share."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator

from permafrost.flows.engine.choice import parse_engine
from permafrost.flows.graph import Input, Node, resolve
from permafrost.flows.home import home_url, open_home
from permafrost.flows.threads import n_cores, n_free_cores
from permafrost.stages.bounds import MAX_BYTES, MAX_LAYERS
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.extraction.backbone import Backbone, choose_device, load_backbone
from permafrost.stages.extraction.segment_pool import SegmentPool
from permafrost.stages.extraction.target import ExtractRuntime, ExtractTarget, target_of_identity
from permafrost.storage.artifacts import ArtifactStore, parse_ref
from permafrost.storage.features.identity import FloatName, StoreIdentity
from permafrost.storage.features.layout import Codec
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import replica_of


class RunRuntime(BaseModel):
    """How an experiment runs; nothing here is part of any key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: str | None = None
    """What runs the stages: serial, prefect, dask or dask=tcp://host:port; None leaves it to the caller."""
    workers: int = Field(default=0, ge=0, le=MAX_LAYERS)
    """Stages side by side, and processes of the engine `dask`; 0 means as many as cores are free when the run
    starts."""
    threads: int = Field(default=0, ge=0, le=MAX_LAYERS)
    """Of a stage; 0 means one, and all cores for one that runs the backbone on the CPU, in one process."""
    worker_memory_bytes: int = Field(default=0, ge=0, le=MAX_BYTES)
    """Memory of a worker of the cluster that `dask` starts; 0 means its share of this machine's."""
    memory_bytes: int = Field(default=1 << 30, ge=1, le=MAX_BYTES)
    """Features of one reader held in memory, at most; beyond, windows of segments are streamed."""
    device: str = "auto"
    """Where heads are trained and scored: auto, cpu, cuda, cuda:1, ..."""
    extract: ExtractRuntime = ExtractRuntime()

    @field_validator("engine")
    @classmethod
    def _known(cls, name: str | None) -> str | None:
        if name is not None:
            parse_engine(name)
        return name

    def choose_workers(self) -> int:
        """Stages side by side; looks at what other programs do now, if it is not set."""
        return self.workers or max(1, n_free_cores() // max(1, self.threads))


class SharedBackbone:
    """A backbone that nodes of one process use one after the other, loaded when the first one needs it."""

    def __init__(self) -> None:
        self._loaded: tuple[tuple[str, str, str], Backbone] | None = None
        self._lock = threading.Lock()

    def load(self, target: ExtractTarget, device: str, dtype: FloatName | None = None) -> Backbone:
        """The backbone of `target`, in its own precision unless another is given; the last one is kept."""
        dtype = dtype or target.identity.compute_dtype
        wanted = (target.files.weights_digest, dtype, device)
        with self._lock:
            if self._loaded is None or self._loaded[0] != wanted:
                self._loaded = None  # freed before another one is loaded
                self._loaded = wanted, load_backbone(target.files, dtype, device)
            return self._loaded[1]

    def drop(self) -> None:
        """Free its memory."""
        with self._lock:
            self._loaded = None


class BackboneSource(BaseModel):
    """Where the backbone of a recorded identity is found: running needs it, and a key must not hold it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    revision: str
    codec: Codec
    """Of a store that is made anew."""


class RunContext:
    """The home and the device of a run, and what its nodes share in this process.

    Pickled, it is the home's URL and the runtime settings: another process opens the home anew, on another
    machine through a replica of its own, and sees all that was published before.

    Args:
        home: a folder, or a URL, see `open_home`.
        runtime: settings of the run.
    """

    def __init__(self, home: str | Path, runtime: RunRuntime) -> None:
        self.home, self.runtime = open_home(home, SilentProgress()), runtime
        """`home` is its folder here; of a home on an object store the one that mirrors it."""
        self.artifacts = ArtifactStore(self.home)
        self.backbone = SharedBackbone()
        self.segments: SegmentPool | None = None
        """Who computes segments of features; None: this process. An engine sets it."""
        self.built: dict[str, Corpus] = {}
        """Corpora that were built before they were published, by node."""
        self._corpora: dict[str, Corpus] = {}
        self._targets: dict[str, ExtractTarget] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        # Not the corpora that were read for checks: they are large, and a node reads what it needs.
        return RunContext, (self.url, self.runtime)

    @property
    def url(self) -> str:
        """What opens the home from another process, wherever that runs."""
        return home_url(self.home)

    def refresh(self) -> None:
        """Take note of what other machines have published in a home on an object store."""
        if replica_of(self.home) is not None:
            open_home(self.url, SilentProgress())

    @property
    def device(self) -> str:
        """Where heads are trained and scored."""
        return str(choose_device(self.runtime.device))

    def wants_the_machine(self, node: Node) -> bool:
        """Whether a node uses all processors by itself: whatever runs the backbone without a GPU."""
        return node.resources.backbone and choose_device(self.runtime.extract.device).type == "cpu"

    def in_the_way(self, one: Node, other: Node) -> bool:
        """Whether two nodes cannot run side by side in one process."""
        if self.wants_the_machine(one) or self.wants_the_machine(other):
            return True
        return one.resources.backbone and other.resources.backbone

    def threads_of(self, node: Node) -> int:
        """torch's threads in a node: they depend on its kind, the machine and the settings, not on what runs
        beside it, as they can change the last digits of results."""
        return self.runtime.threads or (self.all_threads if self.wants_the_machine(node) else 1)

    @property
    def all_threads(self) -> int:
        """One for each core, unless torch was told to use fewer (`OMP_NUM_THREADS`)."""
        return min(n_cores(), torch.get_num_threads())

    def open(self, source: Input) -> Path:
        """The verified folder of an artifact.

        Raises:
            NotFoundError: it is not published.
            CorruptDataError: a file of it is damaged.
        """
        return self.artifacts.open(parse_ref(source.ref))

    def load(self, source: Input) -> Any:
        """An artifact as its loader reads it; raises as `open`."""
        return resolve(source.loader)(self.open(source))

    def corpus(self, source: Input) -> Corpus:
        """A corpus, which is kept: many nodes read the same one. Raises as `open`."""
        with self._lock:
            corpus = self._corpora.get(source.ref)
        if corpus is None:
            corpus = self.load_corpus(source)
            with self._lock:
                self._corpora[source.ref] = corpus
        return corpus

    def is_known(self, source: Input) -> bool:
        """Whether a corpus can be had now; false of one that nothing but a run makes, before it did."""
        return self.artifacts.is_done(parse_ref(source.ref))

    def load_corpus(self, source: Input) -> Corpus:
        """A corpus from its artifact."""
        return self.load(source)

    def target(
        self, identity: StoreIdentity, arrays: tuple[str, ...], where: BackboneSource
    ) -> ExtractTarget:
        """What an extraction into the store of `identity` is for; the backbone's files are hashed once.

        Raises:
            IdentityMismatchError: the backbone found at its source is another one; names both digests.
        """
        key = f"{identity.store_id} {where.model_dump_json()}"
        with self._lock:
            if key not in self._targets:
                self._targets[key] = target_of_identity(
                    identity,
                    arrays,
                    where.source,
                    where.revision,
                    where.codec,
                    f"{identity.store_id[:12]} (backbone looked for at {where.source})",
                )
        return replace(self._targets[key], arrays=arrays)

    def bare_target(self, node: Node) -> ExtractTarget:
        """The backbone and recipe that a node names, for work that no store is read or written for."""
        identity = StoreIdentity.model_validate(node.run_facts["identity"])
        return self.target(identity, (), BackboneSource.model_validate(node.run_facts["backbone"]))
