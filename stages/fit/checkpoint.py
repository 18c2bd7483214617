"""Checkpoints: a fit that was killed resumes where it was last saved."""

import hashlib
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast

import pyarrow as pa
import torch

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import FitData
from permafrost.stages.fit.trainer import Trainer
from permafrost.storage.durable import stream_durably
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import digest
from permafrost.storage.progress import Progress
from permafrost.storage.spent import forget_spent, record_spent, spent

_CHECKSUM = hashlib.sha256().digest_size
"""Bytes of the checksum before the content."""
_SHARE = 20.0
"""A training computes at least this many times as long as a checkpoint takes to be written."""


class _Hashing(io.RawIOBase):
    """Writes to a file, and hashes what it writes: neither the content nor its copy is held in memory."""

    def __init__(self, file: BinaryIO) -> None:
        super().__init__()
        self._file, self._hash = file, hashlib.sha256()

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any, /) -> int:
        """All of it."""
        self._hash.update(data)
        return self._file.write(data)

    def digest(self) -> bytes:
        """Of everything that was written."""
        return self._hash.digest()


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint file of one fit. `identity` covers config and data, not the code: the name should."""

    path: Path
    identity: str
    every_s: float = 0.0
    """Minimum seconds between two writes, of which large ones have longer ones: `_SHARE` times what the last
    one took. 0 for a write each time."""
    after: Literal["epochs", "steps"] = "epochs"
    """When it may be written; `steps` for those that take so long that an epoch is too much to lose."""

    def save(self, content: Mapping[str, Any]) -> bool:
        """Replace the file with tensors and plain values, atomically and durably.

        Returns:
            Whether it was; not if its folder goes meanwhile: another process that makes the same removes it
            once its own result is published.

        Raises:
            DiskFullError: there is no room; the file is unchanged.
        """

        def write(file: BinaryIO) -> None:
            file.write(bytes(_CHECKSUM))
            hashing = _Hashing(file)
            torch.save({"identity": self.identity, **content}, cast(BinaryIO, hashing))
            file.seek(0)
            file.write(hashing.digest())

        try:
            stream_durably(self.path, write)
        except FileNotFoundError as error:
            if not Path(str(error.filename)).is_relative_to(self.path.parent):
                raise
            return False
        return True

    def load(self) -> dict[str, Any] | None:
        """What was saved; None if there is no file, or it belongs to a fit with another config or other data.

        Raises:
            CorruptDataError: the file is damaged.
        """
        try:
            written = self.path.read_bytes()
        except FileNotFoundError:
            return None
        checksum, whole = written[:_CHECKSUM], written[_CHECKSUM:]
        if hashlib.sha256(whole).digest() != checksum:
            raise CorruptDataError(
                f"the checkpoint {self.path} is damaged: its {len(written)} bytes do not match the checksum "
                "at its start; delete it, and the fit starts again"
            )
        content = torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True)
        return content if content["identity"] == self.identity else None


def train_resumably(
    trainer: Trainer[Any, Any], progress: Progress, checkpoint: Checkpoint | None
) -> None:
    """Train to the end, from where a killed fit had come to.

    The file stays: whoever is killed before the result was saved finds the end of the training in it, or
    what was written last before. It is for its owner to remove; a training whose file goes meanwhile goes on.

    Raises:
        PermafrostError: see `Trainer.run`.
        CorruptDataError: the checkpoint is damaged.
    """
    if checkpoint is None:
        trainer.run(progress)
        return
    before, began = 0.0, time.monotonic()
    if (saved := checkpoint.load()) is not None:
        trainer.load_state_dict(saved)
        before = spent(checkpoint.path.parent)
        record_spent(checkpoint.path, before, 0.0)
    else:
        forget_spent(checkpoint.path)
    last_saved, wait_s = time.monotonic(), checkpoint.every_s

    def save() -> None:
        nonlocal last_saved, wait_s
        if (begun := time.monotonic()) - last_saved < wait_s:
            return
        if checkpoint.save(trainer.state_dict()):
            last_saved = time.monotonic()
            record_spent(checkpoint.path, before, last_saved - began)
            if checkpoint.every_s:
                wait_s = max(checkpoint.every_s, _SHARE * (last_saved - begun))

    if checkpoint.after == "steps":
        trainer.run(progress, save, save)
    else:
        trainer.run(progress, save)


def checkpoint_of(
    path: Path, config: FitConfig, data: FitData, to_beat: float | None, every_s: float = 0.0
) -> Checkpoint:
    """The checkpoint of one fit at `path`."""
    examples = pa.BufferOutputStream()
    table = data.examples.combine_chunks()
    with pa.ipc.new_stream(examples, table.schema) as stream:
        stream.write_table(table)
    facts = {
        "config": config.model_dump(mode="json"),
        "to_beat": to_beat,
        "task": data.task,
        "label_names": data.label_names,
        "texts": hashlib.sha256("\n".join(data.digests).encode()).hexdigest(),
        "examples": hashlib.sha256(examples.getvalue()).hexdigest(),
        "arrays": {name: reader.width for name, reader in data.readers.items()},
    }
    return Checkpoint(path, digest(facts), every_s)
