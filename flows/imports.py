"""Imports of a program that lives for one command."""

import contextlib
import gc
import sys
from collections.abc import Generator


@contextlib.contextmanager
def kept_imports() -> Generator[None]:
    """What is imported inside stays: Python's garbage collector neither looks through it meanwhile, time and
    again, nor later, nor when Python ends. For our own process only, not for a user's.

    Libraries make a million objects when they are imported: of the 9 s of processor time in which the
    command line imports torch, transformers and Prefect and ends again, that is 3.
    """
    n_before, collecting = len(sys.modules), gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if len(sys.modules) > n_before:
            gc.freeze()
        if collecting:
            gc.enable()
