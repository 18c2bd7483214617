"""A fit that was killed goes on where it was: what it knows after an epoch, in one file."""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from permafrost.stages.fit.config import FitConfig
from permafrost.stages.fit.data import FitData
from permafrost.storage.durable import remove, write_durably
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import digest

_CHECKSUM = hashlib.sha256().digest_size
"""Bytes before the content."""


@dataclass(frozen=True)
class Checkpoint:
    """The file of one fit. It is known by config and data, not by code: let its name depend on that."""

    path: Path
    identity: str

    def save(self, content: Mapping[str, Any]) -> None:
        """Replace the file by tensors and plain values, at once and durably.

        Raises:
            DiskFullError: no room; the file is as it was.
        """
        file = io.BytesIO()
        torch.save({"identity": self.identity, **content}, file)
        whole = file.getvalue()
        write_durably(self.path, hashlib.sha256(whole).digest() + whole)

    def load(self) -> dict[str, Any] | None:
        """What was saved; None if nothing was, or by a fit of another config or other data.

        Raises:
            CorruptDataError: the file is not as it was written.
        """
        if not self.path.exists():
            return None
        written = self.path.read_bytes()
        checksum, whole = written[:_CHECKSUM], written[_CHECKSUM:]
        if hashlib.sha256(whole).digest() != checksum:
            raise CorruptDataError(
                f"the checkpoint {self.path} is damaged: its {len(written)} bytes do not have the checksum "
                "they begin with; delete it, and the fit begins anew"
            )
        content = torch.load(io.BytesIO(whole), map_location="cpu", weights_only=True)
        return content if content["identity"] == self.identity else None

    def remove(self) -> None:
        """The fit is over."""
        remove(self.path)


def checkpoint_of(
    path: Path, config: FitConfig, data: FitData, to_beat: float | None
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
    return Checkpoint(path, digest(facts))
