"""Extracts a corpus into a home on an object store beside another process that does the same.

python extract_in_turns.py MODEL_FOLDER URL N_TEXTS MACHINE

Says `ready`, waits for a line, and prints how many cells it has computed.
"""

import socket
import sys
from pathlib import Path

from permafrost.flows.home import open_home
from permafrost.stages.extraction import extract as module
from permafrost.stages.extraction.target import ExtractRuntime
from permafrost.storage.features import turns
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from tests.crash.extract_to_object_store import AXES, corpus, target_of


def main(model: Path, url: str, n_texts: int, machine: str) -> None:
    """One extraction, in short turns."""
    socket.gethostname = lambda: machine
    turns.TURN_S, turns.LOOK_S, module.GIVE_WAY_S = 0.0, 0.05, 0.5
    target, texts = target_of(model), corpus(n_texts)
    home = open_home(url, SilentProgress())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    report = module.extract(
        target,
        home,
        texts,
        [text_digest(t) for t in texts],
        ExtractRuntime(device="cpu", batch_tokens=128, block_texts=64, busy="wait"),
        SilentProgress(),
        axes=AXES,
    )
    sys.stdout.write(f"{report.n_cells}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])
