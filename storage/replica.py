"""Homes on an object store, through a local folder that mirrors them.

The object store holds what a local home holds, file by file, so that any Zarr reader that supports its
protocol can open the features there. This program works in a local folder, the replica:

- every write goes to the object store first and only then appears in the replica, so whatever is in the
  replica is in the object store;
- the index (tables, receipts, manifests, Zarr metadata) is pulled when a home is attached and when a
  write lease is taken; the files of artifacts are fetched when they are first read, and shards when
  most of them is read: of others the chunks that are read come alone;
- the replica may be deleted while no program uses it.
"""

import atexit
import contextlib
import fnmatch
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import ObjectStore

from permafrost.storage import downloads
from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import draft_path, files_here
from permafrost.storage.entity_tags import read_tags, write_tags
from permafrost.storage.errors import CorruptDataError, InputError, ObjectStoreError
from permafrost.storage.lease import Lease
from permafrost.storage.object_stores import connected, reason
from permafrost.storage.progress import Progress

if TYPE_CHECKING:
    from obstore import ObjectMeta

PULLS = 3
"""How often an index is pulled of which something came or went after it was listed: what is there then is
another one, of which a part may be here already."""

_INDEX = (
    "features/*/store.json",  # and its copy, in `copies/`
    "features/*/segments/*.parquet",
    "features/*/receipts/*.json",
    "features/*/repair.json",
    "features/*/zarr.json",
    "artifacts/*/*/artifact.json",
    "runs/*.json",
)
"""Small files that list what exists (`*` also matches slashes)."""

_RECEIPTS = "/receipts/"
_TORN = "response body"
"""In the client's message where a connection ended in the middle of an answer."""

_replicas: dict[Path, "Replica"] = {}


def attach(url: str, folder: Path, progress: Progress) -> Path:
    """Mirror the home at `url` in `folder` and pull its index; returns `folder`, to be used as a home.

    Credentials, region and endpoint are read from where the provider's own tools read them (for S3 the
    AWS_* environment variables).

    Raises:
        InputError: the kind of object store is unknown, it cannot be listed, or the URL names another place
            than it seems to.
    """
    store = connected(url)
    attached = _replicas.get(folder.absolute())
    replica = Replica(url, folder.absolute(), store) if attached is None else attached
    try:
        replica.pull(replica.folder, progress)
    except ObjectStoreError as error:
        raise InputError(
            f"{error}. Check that the bucket exists and the credentials and endpoint in the environment "
            f"are right"
        ) from error
    # Nodes that run in parallel may attach the same home at the same time.
    if attached is None and _replicas.setdefault(replica.folder, replica) is replica:
        atexit.register(replica.remember)
    return replica.folder


def detach(folder: Path) -> None:
    """Use `folder` as an ordinary folder from now on."""
    replica = _replicas.pop(folder.absolute(), None)
    if replica is not None:
        replica.remember()
        atexit.unregister(replica.remember)


def replica_of(path: Path) -> "Replica | None":
    """The replica that `path` lies in; None for an ordinary local path, and for drafts, which are private."""
    if not _replicas:
        return None
    whole = path.absolute()
    found = next((r for folder, r in _replicas.items() if whole.is_relative_to(folder)), None)
    if found is None or any(
        p.startswith(".draft-") for p in whole.parts[len(found.folder.parts) :]
    ):
        return None
    return found


def public_name(path: Path) -> str:
    """The name of `path` for others: its URL if it is in a replica, else the path itself."""
    replica = replica_of(path)
    return str(path) if replica is None else replica.url_of(path)


def fetch_missing(paths: Sequence[Path]) -> None:
    """Fetch the files that are not in the replica yet; does nothing for ordinary local paths."""
    for path in paths:
        if (replica := replica_of(path)) is not None and not path.exists():
            replica.fetch(path)


class Replica:
    """A local folder and the object store that it mirrors."""

    def __init__(self, url: str, folder: Path, store: ObjectStore) -> None:
        self.url, self.folder, self._store = url.rstrip("/"), folder, store
        known = read_tags(self.folder)
        self._tags = known[1] if known is not None and known[0] == self.url else {}
        """Entity tags of the index files as they are here."""

    def key_of(self, path: Path) -> str:
        """Key of the object that mirrors a local path."""
        return path.absolute().relative_to(self.folder).as_posix()

    def url_of(self, path: Path) -> str:
        """URL of the object that mirrors a local path."""
        return f"{self.url}/{self.key_of(path)}".removesuffix("/.")

    def remember(self) -> None:
        """Keep the entity tags for the next process."""
        write_tags(self.folder, self.url, self._tags)

    def note(self, path: Path, tag: str) -> None:
        """Record that the local file equals the object with this entity tag."""
        self._tags[self.key_of(path)] = tag

    def pull(self, under: Path, progress: Progress) -> None:
        """Bring the index files under a local folder up to date.

        If an index file changed elsewhere, what was fetched for it is dropped too (a receipt's shard, a
        manifest's files), and fetched again when it is read.
        """
        for _ in range(PULLS):
            if self._pulled(under, progress):
                return

    def _pulled(self, under: Path, progress: Progress) -> bool:
        """Whether nothing came or went after the listing, as far as it was looked for."""
        listed = {key: tag for key, tag, _ in self._list(under) if _is_index(key)}
        wanted = [
            key
            for key, tag in listed.items()
            if self._tags.get(key) != tag or not (self.folder / key).exists()
        ]
        up_to_date = True
        if wanted:
            progress.start("pull", len(wanted), "files")
            try:
                # Receipts last, in the order of writing, as another process may be reading this replica.
                receipts = [key for key in wanted if _RECEIPTS in key]
                others = [key for key in wanted if _RECEIPTS not in key]
                with ThreadPoolExecutor(16) as pool:
                    for keys in (others, receipts):
                        for is_there in pool.map(self._refresh, keys):
                            up_to_date &= is_there
                            progress.advance(1)
            finally:
                progress.finish()
        self.remember()
        # Receipts first, in the order of removing: a table that is asked for after them is there if they
        # were, also where another machine writes the store again between the two.
        here = [(self.key_of(p), p) for p in files_here(under)]
        for key, path in sorted(here, key=lambda one: _RECEIPTS not in one[0]):
            if not _is_index(key) or key in listed or not path.is_file():
                continue
            # Another process of this machine may have put it there since the listing, or another machine may
            # have written again what was removed, of which more is to be pulled.
            if self.exists(path):
                up_to_date = False
                continue
            self._forget(path)
            path.unlink(missing_ok=True)
        return up_to_date

    def fetch(self, path: Path) -> None:
        """Download one object to its place in the replica, completely or not at all.

        Raises:
            CorruptDataError: the object does not exist.
            DiskFullError: there is no room for it here.
        """
        key = self.key_of(path)
        # Not beside it: a writer removes all drafts from the store that it writes.
        draft = draft_path(self.folder / "fetched")
        with disk_errors_named(path, self.url):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                tag = self.download(path, draft)
                draft.replace(path)
                self._tags[key] = tag
            finally:
                draft.unlink(missing_ok=True)

    def download(
        self, path: Path, target: Path, moved: Callable[[int], None] = lambda _: None
    ) -> str:
        """Write the object of a local path to the file `target`; returns its entity tag.

        Args:
            path: in the replica.
            target: anywhere; overwritten.
            moved: told the bytes of every piece.

        Raises:
            CorruptDataError: the object does not exist.
            ObjectStoreError: it could not be read, or was replaced again and again meanwhile.
        """
        key = self.key_of(path)
        with self._wire("read", key), target.open("wb") as file:
            return downloads.download(self._store, key, file, moved)

    def read_range(self, path: Path, start: int, stop: int) -> bytes:
        """Bytes `[start, stop)` of the object of a local path; none of them stays here.

        Raises:
            CorruptDataError: the object does not exist, or is shorter.
        """
        key = self.key_of(path)
        with self._wire("read", key):
            found = bytes(obstore.get_range(self._store, key, start=start, end=stop))
        if len(found) != stop - start:
            raise CorruptDataError(
                f"{self.url}/{key} has {len(found):,} of the {stop - start:,} bytes from {start:,} on; run "
                "'permafrost verify' with this --home"
            )
        return found

    def put(self, source: Path, target: Path) -> str:
        """Upload `source` as the object of `target`, by one PUT or as a multipart upload, which appears only
        when complete. Returns the entity tag."""
        key = self.key_of(target)
        with self._wire("write", key):
            return obstore.put(self._store, key, source)["e_tag"] or ""

    def put_new(self, source: Path, target: Path) -> bool:
        """Upload a small file by one PUT unless the object exists; returns whether it has this content now
        and no other."""
        key, content = self.key_of(target), source.read_bytes()
        try:
            with self._wire("write", key):
                obstore.put(self._store, key, content, mode="create", use_multipart=False)
        except ObjectStoreError as error:
            # An answer may be lost on the way: then the client has tried again, or does not know.
            if self._content(key) == content:
                return True
            if isinstance(error.__cause__, AlreadyExistsError):
                return False
            raise
        return True

    def put_word(self, path: Path) -> None:
        """Put an object of which it only counts that it is there; there is none in the replica."""
        key = self.key_of(path)
        with self._wire("write", key):
            obstore.put(self._store, key, b"\n", use_multipart=False)

    def _content(self, key: str) -> bytes | None:
        """What an object holds; None if there is none."""
        with contextlib.suppress(FileNotFoundError, BaseError):
            return bytes(obstore.get(self._store, key).bytes())
        return None

    def exists(self, path: Path) -> bool:
        """Whether the object of a local path exists now."""
        try:
            obstore.head(self._store, self.key_of(path))
        except FileNotFoundError:
            return False
        except BaseError as error:
            raise self._error("read", self.key_of(path), error) from error
        return True

    def delete(self, path: Path) -> None:
        """Delete the object of a local path, if it exists."""
        key = self.key_of(path)
        with contextlib.suppress(FileNotFoundError), self._wire("delete", key):
            obstore.delete(self._store, key)
        self._tags.pop(key, None)

    def delete_tree(
        self, folder: Path, first: str, check: Callable[[], None] = lambda: None
    ) -> None:
        """Delete everything under a local folder's prefix, the file `first` before anything else; `check` is
        called before each request to delete, and what it raises ends the deleting."""
        check()
        self.delete(folder / first)
        keys = [key for key, _, _ in self._list(folder)]
        check()
        self.delete_all(folder, keys)

    def keep_only(self, folder: Path, names: Sequence[str]) -> None:
        """Delete everything under a local folder's prefix but these files."""
        wanted = {self.key_of(folder / name) for name in names}
        self.delete_all(folder, [key for key, _, _ in self._list(folder) if key not in wanted])

    def delete_all(self, folder: Path, keys: Sequence[str]) -> None:
        """Delete objects under a local folder's prefix, in no order."""
        if keys:
            with contextlib.suppress(FileNotFoundError), self._wire("delete", self.key_of(folder)):
                obstore.delete(self._store, keys)
        for key in keys:
            self._tags.pop(key, None)

    def objects(self, under: Path) -> Iterator[tuple[str, int, float]]:
        """Key, bytes and time (seconds since the epoch) of every object under a local folder's prefix."""
        for found in self._listed(under):
            yield found["path"], found["size"], found["last_modified"].timestamp()

    def renew(self, under: Path, progress: Progress) -> None:
        """Bring each file that is here from the object store again, index files too; of those whose object is
        gone nothing stays here. Other processes that read them always find one, and what is mapped stays as
        it is."""
        here = [
            path
            for path in files_here(under)
            # Drafts and the lock are their writer's.
            if path.is_file() and path.name != "writer.lock" and replica_of(path) is not None
        ]
        if not here:
            return
        progress.start("fetch", len(here), "files")
        try:
            with ThreadPoolExecutor(16) as pool:
                for _ in pool.map(self._fetch_again, here):
                    progress.advance(1)
        finally:
            progress.finish()

    def _fetch_again(self, path: Path) -> None:
        try:
            self.fetch(path)
        except CorruptDataError:
            if self.exists(path):
                raise
            self._tags.pop(self.key_of(path), None)
            path.unlink(missing_ok=True)

    def lease(self, path: Path) -> Lease:
        """A lease whose object mirrors `path`."""
        return Lease(self._store, self.key_of(path), self.url_of(path))

    def _refresh(self, key: str) -> bool:
        """Fetch an index file; whether it is there."""
        path = self.folder / key
        before = path.read_bytes() if path.exists() else None
        try:
            self.fetch(path)
        except CorruptDataError:
            if self.exists(path):
                raise
            return False  # removed elsewhere since the listing
        if before is not None and before != path.read_bytes():
            self._forget(path)
        return True

    def _forget(self, index_file: Path) -> None:
        """Drop what was fetched for an index file that is outdated."""
        if index_file.name == "artifact.json":
            for other in index_file.parent.iterdir():
                if other != index_file and other.is_file():
                    other.unlink(missing_ok=True)
                elif other.is_dir():
                    shutil.rmtree(other, ignore_errors=True)
            return
        parts = index_file.relative_to(self.folder).parts
        if len(parts) > 4 and parts[2] == "receipts":
            store, segment, array = self.folder.joinpath(*parts[:2]), parts[3], parts[4:]
            folder = (
                store.joinpath("features.zarr", *array).with_suffix("") / "c" / str(int(segment))
            )
            for shard in (folder, folder / "0"):
                if shard.is_file():
                    shard.unlink(missing_ok=True)

    def _list(self, under: Path) -> Iterator[tuple[str, str, int]]:
        for found in self._listed(under):
            yield found["path"], found["e_tag"] or "", found["size"]

    def _listed(self, under: Path) -> "list[ObjectMeta]":
        key = "" if under == self.folder else self.key_of(under)
        with self._wire("list", key):
            try:
                return self._all_listed(key)
            except BaseError as error:
                # The client itself tries again whatever else fails.
                if _TORN not in str(error):
                    raise
                return self._all_listed(key)

    def _all_listed(self, key: str) -> "list[ObjectMeta]":
        pages: Iterable[Sequence[ObjectMeta]] = obstore.list(  # pyright: ignore[reportUnknownMemberType]
            self._store, prefix=key or None
        )
        return [one for page in pages for one in page]

    @contextlib.contextmanager
    def _wire(self, verb: str, key: str) -> Generator[None]:
        try:
            yield
        except FileNotFoundError as error:
            if verb == "delete":
                raise
            raise CorruptDataError(
                f"{self.url}/{key} is not there although the home's index here says so: it was removed since "
                f"this home was opened (by gc, drop or repair), or is lost. Run the same command again, and "
                f"'permafrost verify' with this --home if it says the same"
            ) from error
        except BaseError as error:
            raise self._error(verb, key, error) from error

    def _error(self, verb: str, key: str, error: BaseError) -> ObjectStoreError:
        return ObjectStoreError(f"cannot {verb} {self.url}/{key}: {reason(error)}")


def _is_index(key: str) -> bool:
    name = key.rpartition("/")[2]
    return not name.startswith(".") and any(fnmatch.fnmatchcase(key, p) for p in _INDEX)
