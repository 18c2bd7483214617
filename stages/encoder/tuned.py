"""A head that was trained together with its backbone: found in a home, and used on texts directly."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32

from permafrost.stages.corpus.given_texts import require_no_table
from permafrost.stages.embed.aggregate import Vectors
from permafrost.stages.embed.finish import require_finite
from permafrost.stages.embed.head import embed_with_head, encode_with_head
from permafrost.stages.encoder.answers import answered, head_answers
from permafrost.stages.encoder.code_of import code_of
from permafrost.stages.encoder.digests import digests_of
from permafrost.stages.encoder.graph_text import FINETUNE
from permafrost.stages.encoder.plugin_code import plugin_code, require_same_code
from permafrost.stages.encoder.predicted import Predicted
from permafrost.stages.encoder.runtime import Device, device_text
from permafrost.stages.encoder.vectors import HeadVectors
from permafrost.stages.extraction.backbone import Backbone, load_backbone
from permafrost.stages.extraction.recipes.inputs import Encoded, numbered_by_first
from permafrost.stages.extraction.target import MOVED, ExtractTarget, target_of_identity
from permafrost.stages.finetune.live_reader import LiveReader
from permafrost.stages.finetune.tuned_head_files import TunedHead, holds_tuned_head, load_tuned_head
from permafrost.stages.fit.trained import LoadedHead
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore
from permafrost.storage.errors import InputError
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.progress import Progress, SilentProgress
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class FittedTuned:
    """A head that was trained with its backbone, and the backbone as it was before."""

    ref: ArtifactRef
    folder: Path
    """Folder of the artifact."""
    tuned: TunedHead
    base: ExtractTarget
    """What the head reads, of the backbone that was trained; features are not rounded."""
    code: Mapping[str, str]
    """Of the plug-ins with which it was trained."""


@dataclass(frozen=True)
class TunedVectors(HeadVectors):
    """A head on rows of the backbone that was trained with it."""

    n_backbone_parameters: int
    """That were trained."""

    @property
    def n_parameters(self) -> int:
        """Of the head, and of the backbone those that were trained."""
        return self.head.n_parameters + self.n_backbone_parameters


def is_tuned_head(home: Path, name: str) -> bool:
    """Whether an artifact holds a head that was trained with its backbone, as opposed to a graph-text model.

    Raises:
        NotFoundError: there is no such artifact.
        CorruptDataError: one of its files is damaged.
    """
    artifacts = ArtifactStore(home)
    ref = artifacts.find(name)
    return ref.stage == FINETUNE and holds_tuned_head(artifacts.open(ref))


def find_tuned(home: Path, name: str, backbone: str | None) -> FittedTuned:
    """Find a head that was trained with its backbone; reads and hashes the backbone's files, loads none.

    Args:
        home: where artifacts lie.
        name: `finetune/<key>`, or the beginning of a key.
        backbone: where the backbone that was trained is now; None if it has not moved.

    Raises:
        NotFoundError: there is no such artifact.
        InputError: it holds no such head, its backbone's place is not recorded, or it uses a plug-in whose
            code has changed.
        IdentityMismatchError: the backbone is a different one; the message has both digests.
    """
    artifacts = ArtifactStore(home)
    ref = artifacts.find(name)
    manifest, folder = artifacts.manifest(ref), artifacts.open(ref)
    if ref.stage != FINETUNE or not holds_tuned_head(folder):
        raise InputError(
            f"{name} is a {ref.stage} artifact without a head that was trained with its backbone; give one "
            f"of a method of kind finetuned ({FINETUNE}/<key>)"
        )
    require_same_code(str(ref), manifest.spec.code)
    tuned = load_tuned_head(folder)
    recorded = manifest.summary.get("backbone"), manifest.summary.get("revision")
    where, revision = recorded if backbone is None else (backbone, "main")
    if where is None:
        raise InputError(
            f"{ref} does not say where the backbone lies that it was trained from, as those of earlier "
            "versions do not; name its folder or hub id with --backbone (backbone= in Python)"
        )
    identity = StoreIdentity(**manifest.spec.config["backbone"], storage_dtype="float32")
    base = target_of_identity(
        identity,
        (tuned.head.layer,),
        where,
        revision or "main",
        "none",
        f"the head {ref} (backbone looked for at {where})",
        MOVED if backbone is None else "",
    )
    return FittedTuned(ref, folder, tuned, base, plugin_code(manifest.spec.code))


@dataclass(frozen=True)
class TunedEncoder:
    """A head with the backbone that was trained with it; created by `load_tuned`.

    Vectors are those that the head was scored with: nothing is rounded and nothing is stored. Other batches
    change them by the noise of the compute dtype.
    """

    backbone: Backbone
    """As it was at the chosen epoch."""
    fitted: FittedTuned

    def __repr__(self) -> str:
        head = self.fitted.tuned.head
        what = f"{head.config.head.kind} of {head.layer}, width {self.d_out}"
        return f"TunedEncoder({self.fitted.ref.stage}/{self.fitted.ref.key[:8]}, {what})"

    @property
    def d_out(self) -> int:
        """Width of a vector."""
        return self.fitted.tuned.head.pooling.d_out

    @property
    def max_length(self) -> int:
        """Maximum tokens per input, special tokens included; longer texts are truncated."""
        return self.fitted.base.max_length

    @property
    def identity(self) -> Mapping[str, Any]:
        """Everything that determines the vectors, but for the noise of other batches and devices."""
        files = digests_of(self.fitted.folder)
        return {
            "head": str(self.fitted.ref),
            "weights": {name: files[name] for name in files if name.endswith(".safetensors")},
            "features": self.fitted.base.identity,
            "code": code_of([self.fitted.tuned.config], type(self)),
        }

    def encode(
        self, texts: Iterable[str], progress: Progress | None = None
    ) -> Float32[np.ndarray, "n d"]:
        """One vector per text, in order, `[n_texts, d_out]` float32. Equal texts are computed once.

        Args:
            texts: any number of texts.
            progress: receives the number of texts done; silent if not given.

        Raises:
            InputError: `texts` is a single text instead of a list, a text is empty, or a vector is not
                finite.
        """
        if isinstance(texts, str):
            raise InputError(
                f"encode was given the text {quoted(texts)} where a list of texts belongs; write [text]"
            )
        require_no_table(texts)
        texts = list(texts)
        if not texts:
            return np.empty((0, self.d_out), np.float32)
        numbers = {text: i for i, text in enumerate(dict.fromkeys(texts))}
        base = self.fitted.base
        unique = list(numbers)
        with numbered_by_first(texts, unique):
            encoded = base.encoded(unique)
        vectors = self._of(unique, encoded, embed_with_head, progress)
        return vectors[[numbers[text] for text in texts]]

    def predict(
        self,
        texts: Iterable[str],
        text_pairs: Iterable[str] | None = None,
        progress: Progress | None = None,
    ) -> Predicted:
        """The answers of the head; see `Encoder.predict`."""
        base = self.fitted.base

        def encoded(each: list[str]) -> Vectors:
            inputs = base.encoded(each)
            return self._of(each, inputs, encode_with_head, progress)

        return answered(head_answers(self.fitted.tuned.head), encoded, texts, text_pairs)

    def _of(
        self,
        texts: list[str],
        encoded: Encoded,
        compute: Callable[[LoadedHead, LiveReader, Progress], Vectors],
        progress: Progress | None,
    ) -> Vectors:
        """What the head makes of texts `[n_texts, width]`, all of it finite."""
        head = self.fitted.tuned.head
        reader = LiveReader(self.backbone, self.fitted.base.recipe, encoded, head.layer)
        found = compute(head, reader, progress or SilentProgress())
        require_finite(found, lambda i: f"the text {quoted(texts[i])}")
        return found


def load_tuned(
    home: Path, name: str, backbone: str | None = None, *, device: Device = "auto"
) -> TunedEncoder:
    """A head with the backbone that was trained with it, on a device. Raises as `find_tuned`."""
    fitted = find_tuned(home, name, backbone)
    loaded = load_backbone(
        fitted.base.files, fitted.base.identity.compute_dtype, device_text(device)
    )
    fitted.tuned.tune(loaded)
    return TunedEncoder(loaded, fitted)
