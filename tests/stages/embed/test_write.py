"""Vectors in a file: what killed commands left beside it goes with the next one."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from permafrost.stages.embed.write import write_embeddings
from permafrost.storage.drafts import owner


def test_a_draft_of_a_killed_command_goes_with_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    # The pid of a draft's owner belongs to a later process: us.
    place, pid, started = owner().split(".")
    dead = tmp_path / f".draft-x.parquet-{place}.{pid}.{int(started) - 1}-0123abcd"
    dead.write_bytes(b"half of it")
    write_embeddings(path, ["a"], np.ones((1, 2), np.float32), {})
    assert list(tmp_path.iterdir()) == [path]
    assert pq.read_table(path).column("text").to_pylist() == ["a"]
