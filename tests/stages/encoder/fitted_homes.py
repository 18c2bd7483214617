"""Homes with features of a few texts and heads with random weights, published as a fit would be."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import Capture
from permafrost.stages.extraction.extract import extract
from permafrost.stages.extraction.recipes import PlainRecipe, Recipe
from permafrost.stages.extraction.target import (
    ExtractConfig,
    ExtractRuntime,
    ExtractTarget,
    resolve_target,
)
from permafrost.stages.fit import (
    Contrastive,
    CosineMse,
    CrossEntropy,
    FitConfig,
    FitResult,
    TaskFacts,
)
from permafrost.stages.fit.history import EpochRecord
from permafrost.stages.fit.models import build_model
from permafrost.stages.freeze import PairEpoch, PairFitConfig, PairFitResult
from permafrost.stages.heads import HeadConfig
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.keys import text_digest, to_plain
from permafrost.storage.progress import SilentProgress

TEXTS = [
    "snow melts",
    "the deep lake freezes slowly under thin ice .",
    "a warm wind is never cold , and the river was always blue and grey under the white sun !",
    "ice",
]
_LOSSES = {
    "classification": CrossEntropy(),
    "pair_classification": CrossEntropy(),
    "similarity": CosineMse(),
    "unlabelled": Contrastive(similarity="dot"),
}
_FACTS = {
    "classification": TaskFacts("classification", ("no", "yes")),
    "pair_classification": TaskFacts("pair_classification", ("none", "one", "both")),
    "similarity": TaskFacts("similarity", label_range=(1.0, 5.0)),
    "unlabelled": TaskFacts("unlabelled"),
}


@dataclass(frozen=True)
class Home:
    """A home with one feature store that holds TEXTS."""

    path: Path
    target: ExtractTarget
    store: FeatureStore

    def head(
        self, head: HeadConfig, layer: str, task: str = "classification", seed: int = 0
    ) -> str:
        """Publish a head whose weights are random; returns its artifact."""
        config = FitConfig(head=head, layer=layer, loss=_LOSSES[task], seed=seed)
        model = build_model(config, _FACTS[task], self.target.sizes.d_model)
        with torch.no_grad():
            for parameter in model.parameters():
                # Biases and gains start where a forgotten one would not show.
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=_draw(seed)))
        best = EpochRecord(1, 0.5, 0.75)
        state = model.state_dict()
        result = FitResult(
            config, config, None, best, (best,), (), self.target.sizes.d_model, _FACTS[task], state
        )
        corpus = list(_FACTS).index(task)
        return self._publish(to_plain(config), (layer,), result, corpus)

    def layers_head(self, config: PairFitConfig, arrays: tuple[str, ...]) -> str:
        """Publish a head on the latents of these arrays, its weights random."""
        n_layers, d_model = len(arrays), self.target.sizes.d_model
        state = config.head.build(n_layers, d_model, _draw(config.seed)).state_dict()
        best = PairEpoch(1, 0.5, 0.75)
        result = PairFitResult(config, n_layers, d_model, best, (best,), state)
        told = {"kind": "layers", "label_range": (1.0, 5.0)}
        return self._publish({**told, **to_plain(config)}, arrays, result)

    def _publish(
        self, config: dict[str, Any], arrays: tuple[str, ...], result: Any, corpus: int = 0
    ) -> str:
        inputs = (
            f"corpus/{corpus:032x}",
            *(f"features/{self.store.store_id}/{array}" for array in arrays),
        )
        spec = ArtifactSpec(stage="fit", config=config, inputs=inputs)
        with ArtifactStore(self.path).publishing(spec, {}) as draft:
            result.save(draft.folder)
        return str(spec.ref)


def home_with_features(
    path: Path,
    backbone: Path | str,
    capture: str,
    recipe: Recipe | None = None,
    *,
    store_dtype: str = "float16",
    dtype: str = "float32",
    max_length: int | None = None,
    texts: list[str] = TEXTS,
) -> Home:
    """Extract `texts` into a new home."""
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(backbone), dtype=dtype, max_length=max_length),
        recipe=recipe or PlainRecipe(),
        capture=Capture.model_validate(capture),
        store_dtype=store_dtype,
    )
    target = resolve_target(config)
    runtime = ExtractRuntime(device="cpu")
    digests = [text_digest(t) for t in texts]
    report = extract(target, path, texts, digests, runtime, SilentProgress())
    return Home(path, target, report.store)


def _draw(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
