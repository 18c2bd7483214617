"""Any head with its backbone in one folder, read by Permafrost, or through it by sentence-transformers."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from permafrost.stages.encoder.answers import LinearAnswers
from permafrost.stages.encoder.digests import digests_of
from permafrost.stages.encoder.encoder import Encoder
from permafrost.stages.encoder.linear_form import read_linear, write_linear
from permafrost.stages.encoder.load import FittedHead, assemble, load_latent_head
from permafrost.stages.encoder.plugin_code import require_same_code
from permafrost.stages.encoder.runtime import BATCH_TOKENS, Device, runtime_on
from permafrost.stages.encoder.vectors import HeadVectors, LatentVectors
from permafrost.stages.extraction.files import CONFIG, tokenizer_files, weight_files
from permafrost.stages.extraction.recipes.recipe import require_same_recipe
from permafrost.stages.extraction.target import target_of_identity
from permafrost.stages.fit.trained import load_head
from permafrost.stages.metrics.records import HISTORY
from permafrost.storage.durable import json_bytes, sha256_of
from permafrost.storage.errors import CorruptDataError, IdentityMismatchError, InputError
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.sealed import read_sealed, sealed_bytes

RECORD = "permafrost.json"
BACKBONE, HEAD = "backbone", "head"
"""Folders inside an exported one."""
MODULES = "modules.json"
MODULE = "permafrost.FrozenBackboneHead"
"""The name that sentence-transformers imports; it stays valid wherever the class is kept."""

FORMAT = 1


class ModuleRecord(BaseModel):
    """The content of `permafrost.json` in a folder of the module form."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = FORMAT
    form: str = "module"
    artifact: str
    """The exported fit."""
    reads: str
    """`tokens` of one array, `layers`, or of a linear classifier `vectors` of its method."""
    arrays: tuple[str, ...]
    identity: StoreIdentity
    """Identity of the store that the head was trained on; of a plain folder with its own backbone."""
    further: tuple[StoreIdentity, ...] | None = None
    """Those of the other prompts of an ensemble, in order."""
    label_range: tuple[float, float] | None = None
    """Lowest and highest label, of a head on every layer."""
    head_sha256: dict[str, str] | None = None
    """Of the files in `head`; folders of earlier versions have none."""
    code: dict[str, str] | None = None
    """Of the plug-ins with which it was trained, if any; folders of earlier versions have none."""

    def fields(self) -> dict[str, Any]:
        """As it is written: without what there is none of, which earlier versions do not know."""
        return self.model_dump(mode="json", exclude_none=True)


def write_module(fitted: FittedHead, folder: Path) -> None:
    """Write a self-contained folder: copies of the backbone's and the head's files, and a record.

    Args:
        fitted: a linear classifier, or any head that has a vector for a text.
        folder: empty.
    """
    files = fitted.target.files
    (folder / BACKBONE).mkdir()
    for name in (CONFIG, *weight_files(files.folder), *tokenizer_files(files.folder)):
        shutil.copyfile(files.folder / name, folder / BACKBONE / name)
    write_head(fitted, folder / HEAD)
    first, *further = (target.identity for target in fitted.targets)
    record = ModuleRecord(
        artifact=str(fitted.ref),
        reads=reads_of(fitted.vectors),
        arrays=fitted.target.arrays,
        identity=first,
        further=tuple(further) or None,
        label_range=fitted.vectors.label_range
        if isinstance(fitted.vectors, LatentVectors)
        else None,
        head_sha256=digests_of(folder / HEAD),
        code=dict(fitted.code) or None,
    )
    (folder / RECORD).write_bytes(sealed_bytes(record.fields()))
    module = {"idx": 0, "name": "0", "path": "", "type": MODULE}
    (folder / MODULES).write_bytes(json_bytes([module]))


def write_head(fitted: FittedHead, folder: Path) -> None:
    """Write what was trained into a new folder."""
    folder.mkdir()
    if isinstance(fitted.vectors, LinearAnswers):
        write_linear(fitted.vectors, folder)
        return
    for name in _LAYERS_FILES if isinstance(fitted.vectors, LatentVectors) else _HEAD_FILES:
        shutil.copyfile(fitted.folder / name, folder / name)


def reads_of(vectors: HeadVectors | LatentVectors | LinearAnswers) -> str:
    """How a record says what is read."""
    if isinstance(vectors, LinearAnswers):
        return "vectors"
    return "layers" if isinstance(vectors, LatentVectors) else "tokens"


def load_exported(
    folder: Path | str, *, device: Device = "auto", batch_tokens: int = BATCH_TOKENS
) -> Encoder:
    """The encoder in a folder of the module form, or in an exported classifier; needs no home.

    Args:
        folder: as `permafrost export` wrote it. Nothing in it is executed.
        device: `auto` or None (the first GPU, else the CPU), a torch device, or its name.
        batch_tokens: maximum padded tokens of a batch.

    Raises:
        InputError: there is no such folder, or it is of the plain form, or uses a plug-in that is not in use
            here or whose code has changed.
        CorruptDataError: its record, its head or its backbone is not what was exported.
    """
    folder = Path(folder)
    record = _read_record(folder)
    _require_head(folder, record)
    require_same_code(f"{record.artifact}, exported to {folder},", record.code or {})
    backbone = folder if record.form == "plain" else folder / BACKBONE
    identities, again = (record.identity, *(record.further or ())), _again(folder, record)
    for each in identities:
        require_same_recipe(str(folder), each.recipe)
    try:
        targets = tuple(
            target_of_identity(
                each, record.arrays, str(backbone), "main", "none", str(folder), f"; {again}"
            )
            for each in identities
        )
    except IdentityMismatchError as error:
        differs = "; ".join(f"{n}: exported {old}, found {new}" for n, old, new in error.differing)
        raise CorruptDataError(
            f"the backbone in {backbone} is not the one that was exported ({differs}); {again}"
        ) from error
    if record.reads == "vectors":
        vectors = read_linear(folder / HEAD, targets)
    elif record.reads == "layers":
        label_range = record.label_range or (0.0, 1.0)
        vectors = load_latent_head(folder / HEAD, record.arrays, record.artifact, label_range)
    else:
        vectors = HeadVectors(load_head(folder / HEAD))
    runtime = runtime_on(device, batch_tokens)
    return assemble(targets, vectors, runtime)


_HEAD_FILES = ("head.json", "head.safetensors")
"""What a fit leaves of a head."""
_LAYERS_FILES = ("pair_head.json", "pair_head.safetensors", HISTORY)


def _read_record(folder: Path) -> ModuleRecord:
    path = folder / RECORD
    try:
        content = _content(folder)
        if _is_bare(content):
            raise InputError(
                f"{folder} is of the plain form, which sentence-transformers loads by itself "
                f"(SentenceTransformer(folder)); export with --form module for this, or a head with classes "
                "with --as classifier"
            )
        return ModuleRecord.model_validate(content)
    except InputError:
        raise
    except (ValueError, ValidationError, AttributeError) as error:
        raise CorruptDataError(f"{path} is damaged ({error}); {_again(folder)}") from error


def is_for_the_library_alone(folder: Path) -> bool:
    """Whether a folder is of the plain form, and no classifier, so that `load_exported` cannot read it.

    Raises:
        InputError: `permafrost export` did not write it.
        CorruptDataError: its record is damaged.
    """
    return _is_bare(_content(folder))


def _is_bare(content: Mapping[str, Any]) -> bool:
    return content.get("form") == "plain" and "identity" not in content


def _content(folder: Path) -> Mapping[str, Any]:
    path = folder / RECORD
    if not path.is_file():
        raise InputError(
            f"{folder} has no {RECORD}, so 'permafrost export' did not write it; name an exported folder"
        )
    return read_sealed(path, _again(folder))[0]


def _require_head(folder: Path, record: ModuleRecord) -> None:
    for name, sha256 in (record.head_sha256 or {}).items():
        path = folder / HEAD / name
        if (found := sha256_of(path)) != sha256:
            why = "it is not there" if found is None else f"SHA-256 {found}, exported was {sha256}"
            raise CorruptDataError(f"{path} is damaged: {why}; {_again(folder, record)}")


def _again(folder: Path, record: ModuleRecord | None = None) -> str:
    """What to do about a damaged folder; `verify` looks at homes only."""
    what = "ARTIFACT"
    if record is not None:
        how = "--as classifier" if record.form == "plain" else "--form module"
        what = f"{record.artifact} {how}"
    return f"delete the folder and export again: 'permafrost export {what} -o {folder}'"
