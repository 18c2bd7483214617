"""Loading with transformers without its progress bar and reports."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import transformers

_LOADING = threading.Lock()
"""transformers' verbosity belongs to the process: two threads loading at once would restore each
other's quiet state."""


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Suppress transformers' progress bar and load report; the problems that matter are raised instead."""
    logs = transformers.utils.logging
    with _LOADING:
        verbosity, bar = logs.get_verbosity(), logs.is_progress_bar_enabled()
        logs.set_verbosity(logging.ERROR)
        logs.disable_progress_bar()
        try:
            yield
        finally:
            logs.set_verbosity(verbosity)
            if bar:
                logs.enable_progress_bar()
