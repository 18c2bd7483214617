"""A home as a data set of the Hugging Face hub: a folder to upload, and a home in an uploaded one.

The folder is an ordinary home with a card. Nothing is uploaded from here.
"""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.durable import write_durably
from permafrost.storage.errors import InputError, NotFoundError
from permafrost.storage.features.parts import StorePart
from permafrost.storage.features.places import n_distinct
from permafrost.storage.features.store import ALWAYS, FeatureStore, all_stores
from permafrost.storage.features.writing import remove_ended_lock
from permafrost.storage.quoting import quoted
from permafrost.storage.replica import replica_of

HUB = "hf://datasets/"
CARD = "README.md"
_NAME = "Features of frozen language models"
MAX_ENTRIES, MAX_FILES, MAX_FILE_BYTES = 10_000, 100_000, 20 * 1000**3
"""What the hub recommends at most: entries of a folder, files of a repository, bytes of a file."""
_FILES_OF_A_SEGMENT, _FILES_OF_A_CELL, _FILES_BESIDE = 2, 2, 100


def require_hub_limits(part: StorePart, target: Path) -> None:
    """Check what a part will be as a folder for the hub; call it before anything is copied.

    Raises:
        InputError: the target is no local folder, or there are more or larger files than the hub takes.
    """
    if replica_of(target) is not None:
        raise InputError(
            "a data set for the hub is written to a folder of this machine; give --to a folder, and upload "
            "that"
        )
    n_segments, store = len(part.segments), part.source
    n_cells = (len(part.arrays) + len(ALWAYS) + 1) * n_segments
    n_files = _FILES_OF_A_SEGMENT * n_segments + _FILES_OF_A_CELL * n_cells + _FILES_BESIDE
    axes = store.record.axes
    largest = max(
        (
            spec.segment_rows(axes) * spec.row_bytes
            for spec in map(store.spec, (*ALWAYS, *part.arrays))
        ),
        default=0,
    )
    for what, found, most in (
        ("segments, each an entry of one folder", n_segments, MAX_ENTRIES),
        ("files", n_files, MAX_FILES),
        ("bytes in its largest file", largest, MAX_FILE_BYTES),
    ):
        if found > most:
            raise InputError(
                f"this part of {store.store_id[:12]} has {found:,} {what}; the hub takes {most:,}. Nothing "
                "was copied; name fewer arrays or one corpus, or extract into a store with larger segments"
            )


def require_card_place(home: Path) -> None:
    """Check, before anything is copied, that a card written here replaces nobody's README.

    Raises:
        InputError: there is one that `write_card` did not write.
    """
    path = home / CARD
    if path.exists() and f"pretty_name: {_NAME}" not in path.read_text("utf-8", errors="replace"):
        raise InputError(
            f"{path} is there and is no card of a data set that 'push' wrote, which would take its place. "
            "Nothing was copied; give another folder, or move the file away"
        )


def write_card(home: Path) -> Path:
    """Write the card of a home, which tells the hub which tables are in it; returns its path.

    The lock files of writers that have ended go, since they name this machine.
    """
    stores = all_stores(home)
    for store in stores:
        remove_ended_lock(store)
    header = {
        "pretty_name": _NAME,
        "tags": ["permafrost", "zarr"],
        "configs": list(_configs(home, stores)),
    }
    lines = [
        "---",
        yaml.safe_dump(header, sort_keys=False).rstrip(),
        "---",
        "",
        *_text(home, stores),
    ]
    path = home / CARD
    write_durably(path, ("\n".join(lines) + "\n").encode())
    return path


def _configs(home: Path, stores: list[FeatureStore]) -> Iterator[Mapping[str, Any]]:
    for store in stores:
        name = "segments" if len(stores) == 1 else f"segments-{store.store_id[:12]}"
        yield _config(name, f"features/{store.store_id}/segments/*.parquet")
    artifacts = ArtifactStore(home)
    for ref in artifacts.refs("corpus"):
        for table in sorted(artifacts.folder(ref).glob("*.parquet")):
            path = f"artifacts/corpus/{ref.key}/{table.name}"
            yield _config(f"{table.stem}-{ref.key[:12]}", path)


def _config(name: str, path: str) -> Mapping[str, Any]:
    return {"config_name": name, "data_files": [{"split": "train", "path": path}]}


def _text(home: Path, stores: list[FeatureStore]) -> Iterator[str]:
    yield "# Features of frozen language models"
    yield ""
    yield (
        "What a language model computed for each text, once, as Zarr arrays. Made by Permafrost; a copy of "
        "this folder is a home of it."
    )
    for store in stores:
        record = store.record
        identity, numbers = record.identity, store.segments()
        n_texts = n_distinct(store.segment(s).table.column("digest") for s in numbers)
        yield ""
        yield f"## features/{store.store_id}"
        yield ""
        digests = (identity.weights_digest[:12], identity.tokenizer_digest[:12])
        yield "- backbone: weights {}, tokenizer {}".format(*digests)
        yield f"- recipe: {identity.recipe.get('kind')}; at most {identity.max_length} tokens"
        yield f"- computed in {identity.compute_dtype}, stored in {identity.storage_dtype}"
        yield f"- {n_texts:,} texts in {len(numbers):,} segments"
        yield f"- arrays: {', '.join(f'`{a}`' for a in store.arrays() if a not in ALWAYS)}"
    corpora = [ref.key for ref in ArtifactStore(home).refs("corpus")]
    if corpora:
        yield ""
        yield "## Corpora"
        yield ""
        yield from (f"- `artifacts/corpus/{key}`: texts, examples, labels" for key in corpora)
    yield ""
    yield "## Reading it"
    yield ""
    yield "With zarr or xarray, `features/<id>/features.zarr`: a text has the rows `token_start` to"
    yield "`token_start + n_tokens` of the token axis, and the row `text_row` of the text axis, which the"
    yield "tables `segments/*.parquet` say. What was not computed is NaN. With `datasets`, the tables of the"
    yield "configurations above. With Permafrost: `permafrost pull --from FOLDER`, which checks every byte"
    yield "against the receipts."


def downloaded(name: str) -> Path:
    """The folder of a data set of the hub on this machine, brought up to date: a home.

    Args:
        name: `hf://datasets/OWNER/NAME`, with `@REVISION` at its end for another one than the newest.

    Raises:
        InputError: the name is not one of a data set.
        NotFoundError: it cannot be had, now or at all.
    """
    repository, _, revision = name.removeprefix(HUB).rstrip("/").partition("@")
    if (
        not name.startswith(HUB)
        or len(repository.split("/")) != 2
        or not all(repository.split("/"))
    ):
        raise InputError(
            f"{quoted(name)} is no data set of the hub; write {HUB}OWNER/NAME, or {HUB}OWNER/NAME@REVISION"
        )
    # Imported here: it takes a second, and few homes are on the hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = snapshot_download(
            repository, repo_type="dataset", revision=revision or None, library_name="permafrost"
        )
    except HFValidationError as error:
        raise InputError(f"{quoted(name)} is no data set of the hub: {error}") from error
    except (OSError, ValueError) as error:  # the hub's own errors are OSErrors
        raise NotFoundError(
            f"{name} cannot be downloaded: {str(error).strip().splitlines()[0]}. Nothing was copied; the "
            "same command goes on with what is there"
        ) from error
    return Path(os.fspath(folder))
