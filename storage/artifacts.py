"""The artifact store: immutable folders named by key; an artifact is done if and only if it has a
manifest."""

import contextlib
import datetime
import os
import re
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.disk_use import files_under
from permafrost.storage.drafts import DRAFT_PREFIX, STALE_S, draft_path, is_abandoned
from permafrost.storage.durable import (
    is_there,
    large_sha256,
    make_folder,
    remove_any,
    renamed_aside,
    set_aside,
    sync_folder,
    write_durably,
)
from permafrost.storage.errors import (
    CorruptDataError,
    InputError,
    NotFoundError,
    RemovedError,
)
from permafrost.storage.keys import KEY_LENGTH, KEY_VERSION, definitions_digest, digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import fetch_missing, public_name, replica_of
from permafrost.storage.sealed import read_versioned, sealed_bytes
from permafrost.storage.spent import spent_before
from permafrost.storage.uploads import uploaded

ARTIFACT_FORMAT = 1
MANIFEST = "artifact.json"
_KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")


class ArtifactRef(BaseModel):
    """Names one artifact; flows pass references instead of data."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    key: str

    def __str__(self) -> str:
        return f"{self.stage}/{self.key}"


class ArtifactSpec(BaseModel):
    """Everything that an artifact's key is computed from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage: str
    config: dict[str, Any]
    """The whole validated config, defaults included, with names already resolved."""
    inputs: tuple[str, ...] = ()
    """In order: `<stage>/<key>` of artifacts, `features/<store_id>/<array>` of cached features."""
    code: dict[str, str] = {}
    """Definitions that the stage reaches, with their digests (storage.fingerprint); empty for stages whose
    result does not depend on our code."""

    @property
    def ref(self) -> ArtifactRef:
        """Stage and key under the current version of keys."""
        return self.ref_of(KEY_VERSION)

    def ref_of(self, key_version: int) -> ArtifactRef:
        """Stage and key under a given version of keys."""
        document = {
            "key_version": key_version,
            "stage": self.stage,
            "config": self.config,
            "inputs": list(self.inputs),
            "code": definitions_digest(self.code),
        }
        return ArtifactRef(stage=self.stage, key=digest(document))


class FileRecord(BaseModel):
    """Size and checksum of one file of an artifact."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    bytes: int
    sha256: str


class Manifest(BaseModel):
    """The content of `artifact.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format_version: int = ARTIFACT_FORMAT
    key_version: int = KEY_VERSION
    key: str
    spec: ArtifactSpec
    files: dict[str, FileRecord]
    summary: dict[str, Any] = {}
    """A few values worth listing; not part of the key."""
    provenance: dict[str, Any] = {}

    @property
    def ref(self) -> ArtifactRef:
        """Stage and key."""
        return ArtifactRef(stage=self.spec.stage, key=self.key)


class Draft:
    """A private folder in which an artifact is written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.summary: dict[str, Any] = {}
        self.waited_s = 0.0
        """How long another process was waited for meanwhile, which is no work on the artifact."""


class ArtifactStore:
    """Artifacts under `<home>/artifacts/<stage>/<key>/`."""

    def __init__(self, home: Path) -> None:
        self.root = home / "artifacts"

    def folder(self, ref: ArtifactRef) -> Path:
        """The folder of an artifact, whether it exists or not."""
        return self.root / ref.stage / ref.key

    def is_done(self, ref: ArtifactRef) -> bool:
        """Whether the artifact was published."""
        return (self.folder(ref) / MANIFEST).is_file()

    def manifest(self, ref: ArtifactRef) -> Manifest:
        """Read and check the manifest.

        Raises:
            NotFoundError: the artifact is not published.
            RemovedError: it was removed meanwhile.
            InputError: the manifest has another format version.
            CorruptDataError: the manifest is damaged, or has another key.
        """
        path = self.folder(ref) / MANIFEST
        if not is_there(path):
            raise NotFoundError(f"there is no artifact {ref}; see 'permafrost ls'")
        try:
            fields, _ = read_versioned(path, "artifact", ARTIFACT_FORMAT)
            manifest = Manifest.model_validate(fields)
        except FileNotFoundError as error:
            raise _removed(ref) from error
        except (CorruptDataError, ValidationError) as error:
            raise CorruptDataError(f"{public_name(path)} is damaged; {_remake(ref)}") from error
        # Checked under its own key version: an older artifact is not reused, but it is still valid.
        described = manifest.spec.ref_of(manifest.key_version)
        if manifest.ref != ref or described != ref:
            raise CorruptDataError(
                f"{public_name(path)} describes {described}, expected {ref}; changed by hand? {_remake(ref)}"
            )
        return manifest

    def open(self, ref: ArtifactRef) -> Path:
        """The folder of an artifact, after checking every file's checksum.

        Raises:
            NotFoundError: the artifact is not published.
            RemovedError: it was removed meanwhile.
            CorruptDataError: a file is missing or differs from what was published.
        """
        manifest = self.manifest(ref)
        fetch_missing([self.folder(ref) / name for name in manifest.files])
        problems = self._damaged_files(manifest)
        if problems:
            if not self.is_done(ref):
                raise _removed(ref)
            raise CorruptDataError(f"{problems[0]}; {_remake(ref)}")
        return self.folder(ref)

    def problems(self, ref: ArtifactRef) -> list[str]:
        """What differs between an artifact's files and its manifest; nothing of one that is gone.

        On an object store the objects themselves are read, not copies fetched earlier.

        Raises:
            InputError: the manifest has another format version, by which nothing is known to be damaged.
        """
        if (replica := replica_of(self.root)) is not None:
            replica.renew(self.folder(ref), SilentProgress())
        try:
            manifest = self.manifest(ref)
            fetch_missing([self.folder(ref) / name for name in manifest.files])
            problems = self._damaged_files(manifest)
            # One that was removed since it was listed is not damaged.
            return problems if self.is_done(ref) else []
        except (NotFoundError, RemovedError):
            return []
        except CorruptDataError as error:
            return [str(error)]

    def _damaged_files(self, manifest: Manifest) -> list[str]:
        folder, problems = self.folder(manifest.ref), list[str]()
        for name, record in manifest.files.items():
            path = folder / name
            try:
                problem = _differs(path, record)
            except FileNotFoundError:
                problem = f"{public_name(path)} is missing"
            if problem is not None:
                problems.append(problem)
        return problems

    def checkpoints(self, ref: ArtifactRef) -> Path:
        """The folder for checkpoints of what makes an artifact; gone once that is published.

        A draft, so that it stays on this machine, and garbage collection finds what a killed run left.
        """
        return self.root / ref.stage / f"{DRAFT_PREFIX}{ref.key}-checkpoint"

    @contextlib.contextmanager
    def publishing(
        self, spec: ArtifactSpec, provenance: Mapping[str, Any], *, again: bool = False
    ) -> Generator[Draft]:
        """Write an artifact into the draft's folder; it is published when the block succeeds.

        The manifest is written last, and the folder appears by one rename. If another process has published
        the same key meanwhile, that one stays. On an exception nothing is published and nothing is left
        behind.

        Args:
            spec: what the key is computed from.
            provenance: recorded beside it.
            again: replace what is published under the key, which stays until the block has succeeded, and
                comes back if the new one cannot take its place. On an object store every file is written over
                the old one, the manifest last: it stays if the first upload fails, and is damaged, until it
                is made again, if a later one does.

        Raises:
            DiskFullError: there is no room.
        """
        ref = spec.ref
        target = self.folder(ref)
        draft = Draft(draft_path(target))
        replaced: Path | None = None
        started = time.monotonic()
        try:
            with disk_errors_named(target):
                make_folder(target.parent)
                draft.folder.mkdir()
                yield draft
                files = {
                    p.relative_to(draft.folder).as_posix(): _record(p) for p in _files(draft.folder)
                }
            manifest = Manifest(
                key=ref.key,
                spec=spec,
                files=files,
                summary=draft.summary,
                provenance={
                    **provenance,
                    "published": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
                    # Of killed processes too, as far as their work was not done again.
                    "seconds": round(
                        time.monotonic()
                        - started
                        - draft.waited_s
                        + spent_before(self.checkpoints(ref)),
                        3,
                    ),
                },
            )
            write_durably(draft.folder / MANIFEST, sealed_bytes(manifest.model_dump(mode="json")))
            with disk_errors_named(target):
                for folder in draft.folder.rglob("*/"):
                    sync_folder(folder)
            again = again and self.is_done(ref)
            replica = replica_of(target)
            if replica is not None and not uploaded(
                replica, draft.folder, target, (*files, MANIFEST), "again" if again else "new"
            ):
                # Another machine was first; its artifact is fetched when it is read.
                replica.fetch(target / MANIFEST)
            else:
                with disk_errors_named(target):
                    if again:
                        replaced = renamed_aside(target)
                    _rename(draft.folder, target)
                    sync_folder(target.parent)
            shutil.rmtree(self.checkpoints(ref), ignore_errors=True)
        finally:
            shutil.rmtree(draft.folder, ignore_errors=True)
            if replaced is not None:
                if not is_there(target) and replica_of(target) is None:
                    replaced.rename(target)
                shutil.rmtree(replaced, ignore_errors=True)

    def refs(self, stage: str | None = None) -> list[ArtifactRef]:
        """Every published artifact (of one stage), including those with a damaged manifest, oldest first."""
        found: list[tuple[int, Path]] = []
        for path in self._manifests(stage):
            if not path.parent.name.startswith(DRAFT_PREFIX):
                with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                    found.append((path.lstat().st_mtime_ns, path))
        return [
            ArtifactRef(stage=p.parent.parent.name, key=p.parent.name) for _, p in sorted(found)
        ]

    def _manifests(self, stage: str | None, key: str = "") -> Iterator[Path]:
        # Includes dangling links, which a pattern ending in a name would leave out.
        folders = self.root.glob(f"{stage or '*'}/{key}*")
        return (p / MANIFEST for p in folders if is_there(p / MANIFEST))

    def all(self, stage: str | None = None) -> Iterator[Manifest]:
        """Every readable published artifact (of one stage), oldest first."""
        for ref in self.refs(stage):
            with contextlib.suppress(CorruptDataError, NotFoundError, RemovedError):
                yield self.manifest(ref)

    def find(self, name: str) -> ArtifactRef:
        """Find an artifact by its key, `<stage>/<key>`, or any unambiguous beginning of a key.

        Raises:
            NotFoundError: there is none.
            InputError: there are several.
        """
        stage, _, key = name.rpartition("/")
        if not key or not set(key) <= set("0123456789abcdef"):
            raise NotFoundError(
                f"{quoted(name)} is not a key; see 'permafrost ls' for what there is"
            )
        found = [p.parent for p in sorted(self._manifests(stage, key))]
        if not found:
            raise NotFoundError(
                f"no artifact begins with {quoted(name)} under {public_name(self.root)}; see 'permafrost ls'"
            )
        if len(found) > 1:
            names = ", ".join(f"{p.parent.name}/{p.name[:12]}" for p in found[:4])
            raise InputError(
                f"{quoted(name)} is ambiguous ({len(found)}: {names}); give more digits"
            )
        return ArtifactRef(stage=found[0].parent.name, key=found[0].name)

    def remove(self, ref: ArtifactRef) -> None:
        """Unpublish by one rename (on an object store by deleting the manifest first), then delete: if killed
        in between, a draft is left, or files without a manifest, never half an artifact."""
        remove_any(self.unpublish(ref))

    def unpublish(self, ref: ArtifactRef, check: Callable[[], None] = lambda: None) -> Path:
        """As `remove`, but leaves deleting to the caller: returns what the folder was renamed to. Of an
        object store nothing is left. `check` is called before everything that goes."""
        check()
        folder = self.folder(ref)
        if (replica := replica_of(folder)) is None:
            return renamed_aside(folder)
        # Here first, as all that is here has to be there.
        folder.mkdir(parents=True, exist_ok=True)
        doomed = renamed_aside(folder)
        replica.delete_tree(folder, MANIFEST, check)
        return doomed

    def leftovers(self) -> list[ArtifactRef]:
        """Folders without a manifest that hold files, none of the last day, by name: nothing reads them. A
        removal that was killed leaves them on an object store, and so does a publication, which puts its
        manifest last and may be under way."""
        found: dict[str, set[str]] = {}
        youngest: dict[str, float] = {}
        for file in files_under(self.root):
            stage, _, rest = file.path.partition("/")
            key, _, name = rest.partition("/")
            if name and _KEY.fullmatch(key):
                ref = f"{stage}/{key}"
                found.setdefault(ref, set()).add(name)
                youngest[ref] = max(youngest.get(ref, file.changed), file.changed)
        latest = time.time() - STALE_S
        return [
            parse_ref(ref)
            for ref, names in sorted(found.items())
            if MANIFEST not in names and youngest[ref] < latest
        ]

    def stale_drafts(self) -> list[Path]:
        """Draft folders that no living run can own."""
        found: list[Path] = []
        for path in sorted(self.root.glob(f"*/{DRAFT_PREFIX}*")):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                if is_abandoned(path):
                    found.append(path)
        return found


def _rename(draft: Path, target: Path) -> None:
    """Give a finished folder its name, unless there is a published one."""
    try:
        draft.rename(target)
    except OSError:
        # Without a manifest what is in the way does not count as done.
        if is_there(target) and not (target / MANIFEST).is_file():
            set_aside(target)
            draft.rename(target)
        elif not is_there(target):
            raise


def parse_ref(text: str) -> ArtifactRef:
    """`<stage>/<key>` to a reference."""
    stage, _, key = text.partition("/")
    assert len(key) == KEY_LENGTH, f"{quoted(text)} is not <stage>/<key>"
    return ArtifactRef(stage=stage, key=key)


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        os.fsync(file.fileno())
    return FileRecord(bytes=path.stat().st_size, sha256=large_sha256(path))


def _differs(path: Path, record: FileRecord) -> str | None:
    """How a file differs from its record; None if it does not."""
    if path.exists() and not path.is_file():
        return f"{public_name(path)} is missing, a folder is there"
    if (size := path.stat().st_size) != record.bytes:
        return f"{public_name(path)} has {size:,} bytes, its manifest says {record.bytes:,}"
    if large_sha256(path) != record.sha256:
        return f"the checksum of {public_name(path)} does not match its manifest"
    return None


def _removed(ref: ArtifactRef) -> RemovedError:
    return RemovedError(
        f"the artifact {ref} is gone: it was removed while it was being read (by gc or repair, or by hand). "
        "Run the same command again; the next run of its experiment makes it again"
    )


def _remake(ref: ArtifactRef) -> str:
    return f"delete it with 'permafrost repair {ref.key[:12]}' and run the experiment again"
