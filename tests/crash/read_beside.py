"""Reads a home over and over until a file appears, and writes down what came of it.

A wrong number ends it, and so does an error that is not one of ours, with a traceback.
"""

import json
import mmap
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import permafrost
from permafrost.storage.errors import PermafrostError
from tests.storage.small_store import ARRAYS


def refused(*_: Any, **__: Any) -> None:
    """As a file system without memory maps."""
    raise OSError(19, "No such device")


def main() -> None:
    """Arguments: mapped or unmapped; the home; expected rows; the file that ends this; the result."""
    how, home, expected, stop, result = sys.argv[1:]
    known = dict(np.load(expected))
    texts = sorted({name.partition("|")[2] for name in known})
    if how == "unmapped":
        mmap.mmap = refused  # type: ignore[assignment, misc]
    read, errors = Counter[str](), Counter[str]()
    readers: dict[str, Any] = {}
    turn = 0
    while not Path(stop).exists():
        turn += 1
        for array in ARRAYS:
            try:
                # Those of some earlier turn as well, which were opened before something was removed.
                if array not in readers or turn % 3 == 0:
                    readers[array] = permafrost.open(home).reader(
                        array, texts, tokens="all", memory_bytes=1 if turn % 2 else 1 << 20
                    )
                for indices, rows in readers[array].in_order(3):
                    for i, found in zip(indices.tolist(), rows, strict=True):
                        if not np.array_equal(found, known[f"{array}|{texts[i]}"]):
                            sys.exit(f"wrong numbers: {array} of {texts[i]} in turn {turn}")
                read[array] += 1
            except PermafrostError as error:
                errors[f"{type(error).__name__}: {error}"] += 1
                readers.pop(array, None)
        draft = Path(f"{result}.draft")
        draft.write_text(json.dumps({"read": read, "errors": errors}))
        draft.replace(result)


if __name__ == "__main__":
    main()
