"""transformers without its own output."""

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
    """Keep transformers' progress bar and load report off the output; what matters of it is raised."""
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
