"""The tests' object store in a process of its own, as who forks has one thread."""

import hashlib
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from tests.campaign.files import File
from tests.storage.object_server import object_server

BUCKET = "bucket"


@dataclass(frozen=True)
class Bucket:
    """A server on loopback that the environment names."""

    _pipe: Connection

    def files(self, prefix: str) -> dict[str, File]:
        """Every object below a prefix, by the rest of its key."""
        self._pipe.send(("files", prefix))
        return self._pipe.recv()

    def put(self, prefix: str, folder: Path) -> None:
        """The files of a home as objects, in place of whatever is there."""
        files = {
            p.relative_to(folder).as_posix(): p.read_bytes()
            for p in folder.rglob("*")
            if p.is_file() and p.suffix != ".lock"
        }
        self._pipe.send(("put", (prefix, files)))
        self._pipe.recv()

    def change(self, prefix: str, files: Mapping[str, bytes | None]) -> None:
        """Overwrite some objects; None removes one."""
        self._pipe.send(("change", (prefix, dict(files))))
        self._pipe.recv()


@contextmanager
def bucket() -> Iterator[Bucket]:
    """A bucket inside the block."""
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("fork").Process(target=_serve, args=(theirs,), daemon=True)
    server.start()
    os.environ.update(ours.recv())
    try:
        yield Bucket(ours)
    finally:
        ours.send(("end", None))
        server.join()


def _serve(pipe: Connection) -> None:
    # Clients that are killed leave connections, of which it tells at length.
    with Path(os.devnull).open("w") as sys.stderr, object_server() as state:
        pipe.send(state.environment)
        while True:
            what, asked = pipe.recv()
            with state.lock:
                match what:
                    case "files":
                        start = f"{BUCKET}/{asked}/"
                        pipe.send(
                            {
                                key.removeprefix(start): _file(key, content, state.times[key])
                                for key, content in state.objects.items()
                                if key.startswith(start)
                            }
                        )
                    case "put" | "change":
                        prefix, files = asked
                        start = f"{BUCKET}/{prefix}/"
                        for key in [*state.objects]:
                            if what == "put" and key.startswith(start):
                                del state.objects[key]
                        for name, content in files.items():
                            if content is None:
                                del state.objects[start + name]
                            else:
                                state.store(start + name, content)
                        pipe.send(None)
                    case _:
                        return


def _file(key: str, content: bytes, time: float) -> File:
    fields = json.loads(content) if "/receipts/" in key else {}
    return File(hashlib.blake2b(content).hexdigest(), int(time * 1e9), fields.get("shard"))
