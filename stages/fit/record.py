"""What a trained head says of itself, `head.json`, read without building the head."""

import json
from pathlib import Path
from typing import Any

from permafrost.storage.errors import CorruptDataError, NotFoundError


def read_record(folder: Path) -> dict[str, Any]:
    """The content of a trained head's `head.json`.

    Raises:
        NotFoundError: the folder holds no head.
        CorruptDataError: the file is not JSON.
    """
    try:
        return json.loads((folder / "head.json").read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise no_head(folder, error) from error
    except ValueError as error:
        raise damaged_head(folder, error) from error


def no_head(folder: Path, error: FileNotFoundError) -> NotFoundError:
    """That a file of a head is missing."""
    return NotFoundError(f"{folder} holds no trained head: {error.filename} is missing")


def damaged_head(folder: Path, error: Exception) -> CorruptDataError:
    """That a file of a head cannot be read."""
    return CorruptDataError(
        f"the head in {folder} is damaged ({type(error).__name__}: {error}); delete the artifact and run the "
        "fit again"
    )
