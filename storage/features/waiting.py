"""Waiting until a store has no other writer."""

import contextlib
import time
from collections.abc import Generator

from permafrost.storage.errors import StoreBusyError
from permafrost.storage.features import turns
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.turns import no_longer_wanted, say_wanted
from permafrost.storage.features.writing import StoreWriter, writing
from permafrost.storage.progress import WAIT, Progress


@contextlib.contextmanager
def writing_when_free(store: FeatureStore, progress: Progress) -> Generator[StoreWriter]:
    """As `writing`, but waits for another writer to end, which `progress` is told."""
    with contextlib.ExitStack() as stack:
        waited = False
        while True:
            try:
                writer = stack.enter_context(writing(store))
                break
            except StoreBusyError as error:
                if not waited:
                    progress.start(WAIT, 0, "")
                waited = True
                progress.advance(0, f"waiting for {error.writer}, which writes the feature store")
                if error.elsewhere:
                    # Here it may have the GPU, and keep it.
                    say_wanted(store)
                time.sleep(turns.LOOK_S)
        if waited:
            progress.finish()
            no_longer_wanted(store)
            store.forget()  # what the other one has written is there now
        yield writer
