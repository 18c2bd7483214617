"""Artifacts of a home, published as a run would publish them."""

from pathlib import Path
from typing import Any

from permafrost.flows.origin import RECORDED, Origin
from permafrost.flows.why.changed_texts import CorpusParts
from permafrost.flows.why.earlier import Earlier
from permafrost.flows.why.explaining import Explainer
from permafrost.flows.why.explanation import Explanation
from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore, parse_ref


class Recorded:
    """A home of artifacts with places in experiments."""

    def __init__(self, home: Path) -> None:
        self.artifacts = ArtifactStore(home)

    def publish(
        self,
        spec: ArtifactSpec,
        *origins: Origin,
        summary: dict[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """Publish an artifact; `more` is recorded beside it."""
        places = [o.model_dump(mode="json") for o in origins]
        with self.artifacts.publishing(spec, {RECORDED: places, **more}) as draft:
            (draft.folder / "x").write_text("x")
            draft.summary = summary or {}
        return str(spec.ref)

    @property
    def explainer(self) -> Explainer:
        folder = self.artifacts.folder
        texts = lambda ref: CorpusParts.stored(folder(parse_ref(ref)))  # noqa: E731
        return Explainer(Earlier(self.artifacts), texts)

    def why(self, spec: ArtifactSpec, *origins: Origin) -> Explanation:
        """How it differs from the nearest published one."""
        return self.explainer.why(spec, origins)


def place(
    name: str = "GLOT", task: str | None = "CoLA", seed: int | None = 0, **more: Any
) -> Origin:
    """Where an artifact stands in the experiment `mine`, unless `more` says another."""
    return Origin(**{"experiment": "mine", "name": name, "task": task, "seed": seed, **more})


def spec(stage: str, config: dict[str, Any], *inputs: str, **code: str) -> ArtifactSpec:
    """What a key is computed from."""
    return ArtifactSpec(stage=stage, config=config, inputs=inputs, code=code)
