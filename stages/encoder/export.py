"""Export a trained head with its backbone as a folder for sentence-transformers."""

import os
import shutil
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from permafrost.stages.encoder.classifier_form import require_classifier, write_classifier
from permafrost.stages.encoder.graph_text import graph_text_use
from permafrost.stages.encoder.load import FittedHead, find_fitted
from permafrost.stages.encoder.model_card import model_card
from permafrost.stages.encoder.module_form import RECORD, write_module
from permafrost.stages.encoder.plain_form import (
    README,
    TOLERANCE,
    Use,
    files_digest,
    obstacle,
    plain_difference,
    write_plain,
)
from permafrost.stages.encoder.tuned import find_tuned, is_tuned_head
from permafrost.stages.encoder.tuned_export import (
    merge_difference,
    merged,
    peft_difference,
    require_one_array,
    write_adapters,
)
from permafrost.stages.encoder.vectors import HeadVectors
from permafrost.stages.extraction.device import require_known_device
from permafrost.storage.disk_errors import disk_errors_named
from permafrost.storage.drafts import draft_path, remove_dead_drafts_of
from permafrost.storage.durable import bytes_under, json_bytes, let_others_read, sync_folder
from permafrost.storage.errors import InputError
from permafrost.storage.paths import HOME_BYTES, checked_path

Form = Literal["plain", "module", "peft"]
"""`plain`: sentence-transformers alone can load it. `module`: for any head, but needs Permafrost too. `peft`:
what was trained of the backbone, without the head."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    folder: Path
    artifact: str
    form: Form
    why_not_plain: str | None
    """Why sentence-transformers alone is not enough; None if it is, or was not requested."""
    difference: float | None
    """For a plain folder the largest difference from our vectors, see `plain_difference`."""
    d_out: int
    n_bytes: int
    merge_difference: float | None = None
    """Of what was trained with a backbone in half precision, in which adapters are merged; see there."""
    peft_difference: float | None = None
    """Of adapters that peft does not load as they were scored; see there."""
    trained_in: str | None = None
    """Of adapters, the dtype of the weights that they were trained on: given none, peft takes that of the
    backbone's files."""


def export_head(
    home: Path,
    artifact: str,
    output: Path,
    form: Form | Literal["auto"] = "auto",
    backbone: str | None = None,
    device: str = "auto",
    use: Use = "vectors",
) -> Exported:
    """Write a trained head and its backbone to `output`, completely or not at all.

    Args:
        home: where artifacts and feature stores lie.
        artifact: `fit/<key>`, `choose/<key>`, `linear/<key>`, `finetune/<key>` of a head that was trained
            with its backbone, or the beginning of a key.
        output: a folder that does not exist, or is empty.
        form: `auto` uses the plain form if it gives the same vectors, else the module form; `peft` writes the
            adapters alone.
        backbone: where the backbone is now; None if it has not moved.
        device: where a folder is compared with our own vectors.
        use: `classifier` for a head with classes, whose folder then says them, too; see `classifier_form`.

    Raises:
        NotFoundError: there is no such artifact, or its feature store is gone.
        InputError: the folder is in use, the head has no vector for a text alone, or the form that was
            requested does not give its vectors, or has no adapters to hold; or a classifier was requested of
            a head without classes.
        IdentityMismatchError: the backbone is not the one the head was trained on; the message has both
            digests.
        DiskFullError: there is no room; nothing is left behind.
    """
    require_known_device(device)
    output = output.resolve()
    _require_free(output)
    if form == "peft":
        if use == "classifier":
            raise InputError(
                "--form peft writes adapters alone, without the head, and --as classifier asks for its "
                "classes; leave one out"
            )
        return _export_adapters(home, artifact, output, backbone, device)
    with ExitStack() as opened:
        tuned = find_tuned(home, artifact, backbone) if is_tuned_head(home, artifact) else None
        if tuned is None:
            _require_no_graph_text(home, artifact)
            fitted = find_fitted(home, artifact, backbone)
        else:
            # Raises what an array that no folder has a place for raises, before anything is written.
            require_one_array(tuned)
            fitted = merged(tuned, opened.enter_context(_scratch(output)))
        if use == "classifier":
            require_classifier(fitted)
        rounding = None if tuned is None else merge_difference(tuned, fitted, device)
        return replace(_export(fitted, output, form, device, use), merge_difference=rounding)


def _export_adapters(
    home: Path, artifact: str, output: Path, backbone: str | None, device: str
) -> Exported:
    tuned = find_tuned(home, artifact, backbone)
    with _appearing(output) as draft:
        write_adapters(tuned, draft)
        rounding = peft_difference(tuned, device)
    return Exported(
        folder=output,
        artifact=str(tuned.ref),
        form="peft",
        why_not_plain=None,
        difference=None,
        d_out=tuned.tuned.head.pooling.d_out,
        n_bytes=bytes_under(output),
        peft_difference=rounding,
        trained_in=tuned.base.identity.compute_dtype,
    )


def _export(
    fitted: FittedHead, output: Path, form: Form | Literal["auto"], device: str, use: Use
) -> Exported:
    reason, difference, written = None, None, "module"
    with _appearing(output) as draft:
        if form != "module":
            reason = obstacle(fitted, use)
            if reason is None:
                write_plain(fitted, draft, use)
                difference = plain_difference(fitted, draft, device, use)
                reason = _disagreement(difference)
            if reason is None:
                written = "plain"
            elif form == "plain":
                raise InputError(
                    f"{fitted.ref} cannot be exported for sentence-transformers alone: {reason}; "
                    f"export with --form module"
                )
        if written == "plain" and use == "classifier":
            write_classifier(fitted, draft)
        elif written == "plain":
            record = {"form": "plain", "artifact": str(fitted.ref)}
            (draft / RECORD).write_bytes(json_bytes(record))
        else:
            _empty(draft)
            difference = None
            write_module(fitted, draft)
        _write_settings(fitted, draft)
        revision = files_digest(draft) if written == "plain" else None
        card = model_card(fitted, written, output, use, revision)
        (draft / README).write_text(card, encoding="utf-8")
    return Exported(
        folder=output,
        artifact=str(fitted.ref),
        form=written,
        why_not_plain=reason,
        difference=difference,
        d_out=fitted.vectors.d_out,
        n_bytes=bytes_under(output),
    )


def _require_no_graph_text(home: Path, artifact: str) -> None:
    if (use := graph_text_use(home, artifact)) is not None:
        why = (
            "a folder for sentence-transformers has no place for graphs"
            if use.reads_graphs
            else "export writes heads and linear classifiers alone"
        )
        raise InputError(f"{use.what}, and {why}; {use.advice}")


def _disagreement(difference: float) -> str | None:
    if difference <= TOLERANCE:
        return None
    return (
        f"what sentence-transformers computes from such a folder differs from our vectors by "
        f"{difference:.2g}, where at most {TOLERANCE:.2g} is noise"
    )


def _write_settings(fitted: FittedHead, folder: Path) -> None:
    settings = {
        "model_type": "SentenceTransformer",
        "prompts": {},
        "default_prompt_name": None,
        "similarity_fn_name": _similarity(fitted),
    }
    (folder / "config_sentence_transformers.json").write_bytes(json_bytes(settings))


def _similarity(fitted: FittedHead) -> str:
    """The similarity for comparing vectors: that of the loss if it has one, else cosine."""
    if isinstance(fitted.vectors, HeadVectors):
        return fitted.vectors.head.config.loss.compared_by
    return "cosine"


def _require_free(output: Path) -> None:
    checked_path(draft_path(output.absolute()), "the output", HOME_BYTES)
    if output.exists() and not output.is_dir():
        raise InputError(f"the export is to go to {output}, which is a file; name a folder")
    if output.is_dir() and (names := sorted(p.name for p in output.iterdir())):
        raise InputError(
            f"the folder {output} is not empty (it holds {', '.join(names[:5])}); name one that is not "
            f"there, or remove it first"
        )
    if output.is_dir() and (output.samefile(Path.cwd()) or output.is_mount()):
        what = "a mounted one" if output.is_mount() else "the working folder"
        raise InputError(
            f"the export appears as a whole in the place of {output}, which cannot be replaced, as it is "
            f"{what}; name a folder in it, e.g. {output / 'encoder'}"
        )
    existing = next(p for p in output.absolute().parents if p.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        why = "may not be written to" if existing.is_dir() else "is not a folder"
        raise InputError(
            f"the export cannot be written to {output}: {existing} {why}; choose another folder"
        )


@contextmanager
def _appearing(output: Path) -> Generator[Path]:
    """A draft folder beside `output`, renamed to it when the block succeeds and removed otherwise."""
    remove_dead_drafts_of(output)
    draft = draft_path(output.absolute())
    try:
        with disk_errors_named(output):
            draft.mkdir(parents=True)
            yield draft
            let_others_read(draft)
            for path in sorted(p for p in draft.rglob("*") if p.is_file()):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            for folder in (*draft.rglob("*/"), draft):
                sync_folder(folder)
            draft.rename(output)
            sync_folder(draft.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _scratch(output: Path) -> Generator[Path]:
    """A folder beside `output` for the length of the block; what a killed export leaves, the next removes."""
    remove_dead_drafts_of(output)
    folder = draft_path(output.absolute())
    try:
        with disk_errors_named(output):
            folder.mkdir(parents=True)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
