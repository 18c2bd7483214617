"""An encoder in Python, or an exported folder, as a model for `mteb.evaluate`.

mteb stores results by the name and revision of a model. Models of sentence-transformers from local folders
have neither, so that all share their results; here the revision is a digest of what makes the vectors.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from permafrost.stages.encoder.encoder import Encoder
from permafrost.stages.encoder.graph_text_encoder import GraphTextEncoder
from permafrost.stages.encoder.module_form import is_for_the_library_alone, load_exported
from permafrost.stages.encoder.plain_form import files_digest, library_model
from permafrost.stages.encoder.runtime import Device, device_text
from permafrost.stages.encoder.tuned import TunedEncoder
from permafrost.stages.extraction.device import device_name
from permafrost.stages.mteb_evaluation.vectors import without_blank_ones
from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest

if TYPE_CHECKING:
    from permafrost.stages.embed.aggregate import Vectors
    from permafrost.stages.mteb_evaluation.encoder import PermafrostEncoder
    from permafrost.stages.mteb_evaluation.task import Role

    Compute = Callable[[list[str]], Vectors]


def mteb_encoder(
    encoder: Encoder | TunedEncoder | GraphTextEncoder | str | os.PathLike[str],
    name: str | None = None,
    *,
    device: Device = "auto",
) -> PermafrostEncoder:
    """A model for `mteb.evaluate`, whose results mteb never takes for those of another one.

    Its revision is a digest of weights, head, recipe, settings and code. As in `evaluations` of an
    experiment, a blank text has a vector of zeros, and vectors are compared by cosine.

    Args:
        encoder: what `Home.encoder` or `load_exported` gives, or a folder that `permafrost export` wrote, in
            the plain form or the module form.
        name: under which mteb lists its results, `permafrost/<name>`; the folder's if not given.
        device: of a folder: `auto` or None (the first GPU, else the CPU), a torch device, or its name. An
            encoder runs where it was loaded.

    Raises:
        InputError: a graph-text model that reads graphs, of which mteb has none; a folder that cannot be
            used; or something else that is no encoder of ours.
        CorruptDataError: the folder is not what was exported.
    """
    if isinstance(encoder, str | os.PathLike):
        folder = Path(encoder)
        compute, identity = _of_folder(folder, device)
        called = name or folder.resolve().name
    else:
        _require_ours(encoder)
        if isinstance(encoder, GraphTextEncoder) and encoder.fitted.reads_graphs:
            raise InputError(
                f"{encoder.fitted.ref} reads a graph beside each text, and tasks of mteb have texts alone; "
                "give an encoder of texts"
            )
        compute, identity = encoder.encode, encoder.identity
        called = name or "encoder"
    from permafrost.stages.mteb_evaluation.encoder import PermafrostEncoder

    return PermafrostEncoder(partial(_vectors, compute, called), called, digest(identity))


def _require_ours(encoder: object) -> None:
    if not isinstance(encoder, Encoder | TunedEncoder | GraphTextEncoder):
        raise InputError(
            f"an encoder of Permafrost is expected, and {type(encoder).__name__} was given; give what "
            "home.encoder(head) or load_exported(folder) returns, or the folder itself"
        )


def _of_folder(folder: Path, device: Device) -> tuple[Compute, Mapping[str, Any]]:
    if not is_for_the_library_alone(folder):
        encoder = load_exported(folder, device=device)
        return encoder.encode, encoder.identity
    model = library_model(folder, device_name(device_text(device)))
    encode = partial(model.encode, show_progress_bar=False)
    # Not the digest alone, by which the library's own model goes: it embeds blank texts, too.
    return encode, {"form": "plain", "files": files_digest(folder)}


def _vectors(compute: Compute, name: str, texts: Sequence[str], role: Role) -> Vectors:
    return without_blank_ones(texts, role, name, lambda unique: compute(list(unique.values())))
