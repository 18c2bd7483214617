"""Which texts the evaluation of a task from the hub will ask for: mteb runs it, and they are written down."""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.mteb_evaluation.tasks import HubTask, Role
from permafrost.stages.mteb_evaluation.texts import texts_corpus
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest


def hub_corpus(config: HubTask, role: Role) -> Corpus:
    """The texts that a task asks for in one role, as a corpus of kind `unlabelled`; blank ones are left out.

    Which these are follows from the data and from mteb's own seeds, not from the vectors.

    Raises:
        InputError: its data cannot be had, or it has no text in this role.
    """
    from permafrost.stages.mteb_evaluation.hub import load_task
    from permafrost.stages.mteb_evaluation.running import run_task

    asked: dict[str, None] = {}

    def write_down(texts: Sequence[str], of: Role) -> Vectors:
        if of == role:
            asked.update(dict.fromkeys(texts))
        return _any_vectors(texts)

    task = load_task(config)
    with TemporaryDirectory() as kept:
        run_task(task, write_down, "texts", "texts", Path(kept))
    corpus = texts_corpus(asked, role)
    if not corpus.texts:
        raise InputError(
            f"the task {config.name} asks for {len(asked)} texts as {role}, and none that is not blank; "
            f"leave the task out, or choose other subsets"
        )
    return corpus


def _any_vectors(texts: Sequence[str]) -> Vectors:
    """Different texts have different vectors `[n, 32]` float32: mteb has no score for others."""
    digests = b"".join(bytes.fromhex(text_digest(text)) for text in texts)
    return np.frombuffer(digests, np.uint8).reshape(len(texts), -1).astype(np.float32) - 127.5
