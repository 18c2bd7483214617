"""Checkpoints: a fit that was killed resumes where it was last saved."""

import hashlib
import io
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import torch

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import FitData
from permafrost.stages.fit.trainer import Trainer
from permafrost.storage.durable import write_durably
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import digest
from permafrost.storage.progress import Progress

_CHECKSUM = hashlib.sha256().digest_size
"""Bytes of the checksum before the content."""


@dataclass(frozen=True)
class Checkpoint:
    """The checkpoint file of one fit. `identity` covers config and data, not the code: the name should."""

    path: Path
    identity: str
    every_s: float = 0.0
    """Minimum seconds between two writes."""
    after: Literal["epochs", "steps"] = "epochs"
    """When it may be written; `steps` for those that take so long that an epoch is too much to lose."""

    def save(self, content: Mapping[str, Any]) -> None:
        """Replace the file with tensors and plain values, atomically and durably.

        Raises:
            DiskFullError: there is no room; the file is unchanged.
        """
        file = io.BytesIO()
        torch.save({"identity": self.identity, **content}, file)
        whole = file.getvalue()
        write_durably(self.path, hashlib.sha256(whole).digest() + whole)

    def load(self) -> dict[str, Any] | None:
        """What was saved; None if there is no file, or it belongs to a fit with another config or other data.

        Raises:
            CorruptDataError: the file is damaged.
        """
        if not self.path.exists():
            return None
        written = self.path.read_bytes()
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
    what was written last before. It is for its owner to remove.

    Raises:
        PermafrostError: see `Trainer.run`.
        CorruptDataError: the checkpoint is damaged.
    """
    if checkpoint is None:
        trainer.run(progress)
        return
    if (saved := checkpoint.load()) is not None:
        trainer.load_state_dict(saved)
    last_saved = time.monotonic()

    def save() -> None:
        nonlocal last_saved
        if time.monotonic() - last_saved >= checkpoint.every_s:
            checkpoint.save(trainer.state_dict())
            last_saved = time.monotonic()

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
