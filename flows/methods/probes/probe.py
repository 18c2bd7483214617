"""What every kind of probe has: curves of numbers, measured on the texts of tasks."""

from abc import abstractmethod
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node
from permafrost.flows.methods.method import Upstream
from permafrost.flows.methods.reading import features
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed import StoredFeatures
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.probes import ProbeCurves
from permafrost.stages.probes.layer_probe import LayerScores
from permafrost.storage.artifacts import Draft
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress

LABELLED: tuple[TaskKind, ...] = ("classification", "pair_classification", "similarity")
ANY_TASK: tuple[TaskKind, ...] = (*LABELLED, "unlabelled")


class Probe(BaseModel):
    """One entry of `probes`: curves by name, on tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    task_kinds: ClassVar[tuple[TaskKind, ...]]
    """Kinds of task that it is made for."""
    single_store: ClassVar[bool]
    """Whether the prompts of an ensemble, one store each, cannot be averaged for it."""

    kind: Any
    """A string; a `Literal` in each kind."""
    tasks: tuple[str, ...] = Field(min_length=1)
    recipe: str = DEFAULT_RECIPE
    """Its name in the experiment."""
    methods: Any
    """Configs of curves, by the name of the curve."""

    def recipes(self) -> tuple[str, ...]:
        """Names of the recipes that it looks at."""
        return (self.recipe,)

    def reads(self, sizes: BackboneSizes) -> set[str]:
        """Stored arrays of all curves, under its recipe.

        Raises:
            InputError: a layer that the backbone does not have.
        """
        return {array for curve in self.methods for array in self.curve_arrays(curve, sizes)}

    def curve_arrays(self, curve: str, sizes: BackboneSizes) -> tuple[str, ...]:
        """Stored arrays of one curve."""
        return self.methods[curve].arrays(sizes)

    @abstractmethod
    def node(self, curve: str, task: str, upstream: Upstream) -> Node:
        """One curve on one task."""


class FeatureProbe(Probe):
    """A probe that is measured of stored features alone."""

    single_store = False

    @abstractmethod
    def stage(self) -> "type[MeasureFeatures]":
        """What measures it."""

    def key_config(self, curve: str) -> dict[str, Any]:
        """What is in the key of a curve."""
        return {"kind": self.kind, **to_plain(self.methods[curve])}

    def node(self, curve: str, task: str, upstream: Upstream) -> Node:
        """One curve on one task."""
        arrays = self.curve_arrays(curve, upstream.sizes)
        read = upstream.reading(self.recipe, arrays, task)
        return self.stage().node(
            f"probe {curve} · {task}",
            self.key_config(curve),
            (upstream.corpus(task), *read.inputs),
            run_facts={**read.run_facts, "curve": curve, "task": task},
            after=read.after,
        )


class MeasureFeatures(Stage):
    """Measures one curve."""

    name = "probe"

    @classmethod
    @abstractmethod
    def measure(
        cls,
        config: dict[str, Any],
        prompt_features: list[StoredFeatures],
        corpus: Corpus,
        progress: Progress,
    ) -> LayerScores | ProbeCurves:
        """The numbers of the curve."""

    @classmethod
    @abstractmethod
    def require(cls, config: dict[str, Any], corpus: Corpus) -> None:
        """Check what the corpus tells without features."""

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        corpus = context.corpus(node.input("corpus"))
        curves = cls.measure(own_config(node), features(node, context), corpus, progress)
        curves.save(draft.folder)
        draft.summary = {n: node.run_facts[n] for n in ("curve", "task")}
        if isinstance(curves, ProbeCurves):
            draft.summary |= curves.choice

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        cls.require(own_config(node), context.corpus(node.input("corpus")))


def own_config(node: Node) -> dict[str, Any]:
    """The config of a curve, without what the key says beside it."""
    return {k: v for k, v in node.config.items() if k not in ("kind", "backbone")}
