"""The texts that the evaluation of a hub task will embed, recorded by a dry run of mteb."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.mteb_evaluation.task import Role
from permafrost.stages.mteb_evaluation.tasks.hub import HubTask
from permafrost.stages.mteb_evaluation.texts import texts_corpus
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest


def hub_corpus(config: HubTask, role: Role) -> Corpus:
    """The texts that a task embeds in one role, as a corpus of kind `unlabelled`, without blank ones.

    They depend on the data and on mteb's own seeds, not on the vectors.

    Raises:
        InputError: the data cannot be loaded, or the task has no text in this role.
    """
    from permafrost.stages.mteb_evaluation.hub import load_task
    from permafrost.stages.mteb_evaluation.running import run_task

    recorded: dict[str, None] = {}

    def record(texts: Sequence[str], of: Role) -> Vectors:
        if of == role:
            recorded.update(dict.fromkeys(texts))
        return _any_vectors(texts)

    task = load_task(config)
    with TemporaryDirectory() as kept:
        run_task(task, record, "texts", "texts", Path(kept))
    corpus = texts_corpus(recorded, role)
    if not corpus.texts:
        raise InputError(
            f"the task {config.name} has no text as {role} that is not blank ({len(recorded)} in all); "
            f"leave the task out, or choose other subsets"
        )
    return corpus


def _any_vectors(texts: Sequence[str]) -> Vectors:
    """Arbitrary vectors `[n, 32]` float32, different for different texts, as mteb cannot score equal ones."""
    digests = b"".join(bytes.fromhex(text_digest(text)) for text in texts)
    return np.frombuffer(digests, np.uint8).reshape(len(texts), -1).astype(np.float32) - 127.5
