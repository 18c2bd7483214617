"""A key stands for the bytes that were hashed: of other bytes nothing is published under it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from permafrost.flows.context import RunContext, RunRuntime
from permafrost.flows.engine.engine import make
from permafrost.flows.graph import Node
from permafrost.flows.nodes.corpora import corpus_node, texts_node
from permafrost.stages.corpus.source import CORPUS_SOURCES
from permafrost.stages.corpus.sources.files import FilesCorpus
from permafrost.stages.mteb_evaluation import task_facts
from permafrost.stages.mteb_evaluation.tasks.sts import StsTask
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.flows.experiments import pairs
from tests.stages.mteb_evaluation.small_tasks import task, write_task


def of_a_task(folder: Path) -> tuple[Node, Path]:
    """A corpus, and the file that it is read from."""
    path = pairs(folder / "train.parquet", 24, 0)
    columns = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    source = {"kind": "files", "files": {"train": str(path)}, "task": columns}
    return corpus_node("task", CORPUS_SOURCES.validate(source)), path


def of_an_evaluation(folder: Path) -> tuple[Node, Path]:
    """The texts of a local evaluation task, and the file that they are read from."""
    (path,) = write_task(folder, "sts").iterdir()
    config = task(folder, "sts")
    return texts_node("sts", config, "text", task_facts(config)), path


@pytest.mark.parametrize(
    ("laid_out", "where", "reads"),
    [(of_a_task, FilesCorpus, "rows"), (of_an_evaluation, StsTask, "read")],
)
def test_a_file_that_changes_before_it_is_read_is_refused_and_nothing_is_published(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    laid_out: Callable[[Path], tuple[Node, Path]],
    where: Any,
    reads: str,
) -> None:
    node, path = laid_out(tmp_path)
    before, context = path.read_bytes(), RunContext(tmp_path / "home", RunRuntime())
    read = getattr(where, reads)

    def changed_and_read(*args: Any) -> Any:
        pq.write_table(pq.read_table(path).slice(1), path)
        return read(*args)

    monkeypatch.setattr(where, reads, changed_and_read)
    with pytest.raises(InputError, match=f"source of '{node.label}' changed"):
        make(node, context, SilentProgress())
    assert not context.artifacts.is_done(node.ref)
    monkeypatch.undo()
    path.write_bytes(before)
    make(node, context, SilentProgress())
    assert context.artifacts.is_done(node.ref)
