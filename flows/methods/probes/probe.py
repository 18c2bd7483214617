"""What every kind of probe has: curves of numbers, measured on the texts of tasks."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, Field

from permafrost.flows.context import RunContext
from permafrost.flows.graph import Node, Resources
from permafrost.flows.methods.cell import Upstream
from permafrost.flows.nodes.reading import features
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.embed.features import StoredFeatures
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.kinds import Category, Kind
from permafrost.stages.probes.curves import ProbeCurves
from permafrost.stages.probes.layer_probe import LayerScores
from permafrost.storage.artifacts import Draft
from permafrost.storage.keys import to_plain
from permafrost.storage.progress import Progress

LABELLED: tuple[TaskKind, ...] = ("classification", "pair_classification", "similarity")
ANY_TASK: tuple[TaskKind, ...] = (*LABELLED, "unlabelled")


class Probe(Kind, ABC):
    """One entry of `probes`: curves by name, on tasks.

    What the report shows of it comes from its artifacts and from the words that its class has.
    """

    task_kinds: ClassVar[tuple[TaskKind, ...]]
    """Kinds of task that it is made for."""
    single_store: ClassVar[bool]
    """Whether the prompts of an ensemble, one store each, cannot be averaged for it."""
    caption: ClassVar[str] = ""
    """What its figure shows, for the report."""
    section: ClassVar[Literal["probes", "layers"]] = "probes"
    """Of the report: a figure of its own, or score by layer, one figure for all."""
    loader: ClassVar[Callable[[Path], object]] = ProbeCurves.load
    """Reads its artifacts."""

    tasks: tuple[str, ...] = Field(min_length=1)
    """The tasks whose texts are measured."""
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
    """A probe that is measured of stored features alone: all that it needs beside its fields is here."""

    single_store = False

    @abstractmethod
    def measure(
        self, config: Any, prompt_features: list[StoredFeatures], corpus: Corpus, progress: Progress
    ) -> LayerScores | ProbeCurves:
        """The numbers of one curve.

        Args:
            config: that of the curve, a value of `methods`.
            prompt_features: stored features of the texts, one per prompt of an ensemble.
            corpus: the texts.
            progress: told about the work.
        """

    def require(self, config: Any, corpus: Corpus) -> None:
        """Check what the corpus tells without features; any will do unless a kind says otherwise.

        Raises:
            InputError: what `measure` would refuse.
        """
        return

    def node(self, curve: str, task: str, upstream: Upstream) -> Node:
        """One curve on one task."""
        arrays = self.curve_arrays(curve, upstream.sizes)
        read = upstream.reading(self.recipe, arrays, task)
        return MeasureFeatures.node(
            f"probe {curve} · {task}",
            {"kind": self.kind, **to_plain(self.methods[curve])},
            (upstream.corpus(task), *read.inputs),
            # Its own curve, and no other.
            kinds=(self.model_copy(update={"methods": {curve: self.methods[curve]}}),),
            run_facts={**read.run_facts, "curve": curve, "task": task},
            after=read.after,
        )


class LiveProbe(Probe):
    """A probe of what no store keeps: it runs the backbone in float32 on texts of the task.

    Each curve may be under a recipe of its own: its config has a field `recipe`, a name in the
    experiment, or None for the probe's.
    """

    task_kinds = ANY_TASK
    single_store = False
    stage: ClassVar[type[Stage]]
    """Measures one curve."""

    def recipes(self) -> tuple[str, ...]:
        """Curves may have one each."""
        return tuple(dict.fromkeys(m.recipe or self.recipe for m in self.methods.values()))

    def curve_arrays(self, curve: str, sizes: BackboneSizes) -> tuple[str, ...]:
        """None."""
        return ()

    def node(self, curve: str, task: str, upstream: Upstream) -> Node:
        """One curve on one task."""
        use = upstream.backbone(self.methods[curve].recipe or self.recipe)
        config = to_plain(self.methods[curve])
        del config["recipe"]  # the backbone's key has what it is
        return self.stage.node(
            f"probe {curve} · {task}",
            {
                "kind": self.kind,
                **config,
                "backbone": {**use.key, "compute_dtype": "float32"},
            },
            (upstream.corpus(task),),
            kinds=(use.recipe,),
            run_facts={**use.run_facts, "curve": curve, "task": task},
            resources=Resources(backbone=True),
        )


def _default_kind(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value.get("kind") == "graph_time":
        raise ValueError(
            "the probe 'graph_time' is a benchmark now, as seconds of one machine are no result of an "
            "experiment; remove this section, and after the run measure with "
            "'python -m benchmarks.graph_time HOME --layer hidden/6'"
        )
    return {"kind": "layers", **value}


PROBES = Category("probe", Probe, "permafrost.flows.methods.probes")
ProbeConfig = Annotated[Probe, PROBES.field(), BeforeValidator(_default_kind)]
"""One section of `probes`; `layers` unless it says which kind."""


class MeasureFeatures(Stage):
    """Measures one curve of a probe of any kind."""

    name = "probe"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        probe, config = _probe(node)
        corpus = context.corpus(node.input("corpus"))
        found = probe.measure(config, features(node, context), corpus, progress)
        found.save(draft.folder)
        draft.summary = {**{n: node.run_facts[n] for n in ("curve", "task")}, **found.choice}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        probe, config = _probe(node)
        probe.require(config, context.corpus(node.input("corpus")))


def _probe(node: Node) -> tuple[FeatureProbe, Any]:
    """The kind of probe that a node measures, and the config of its curve."""
    fields = {"kind": node.config["kind"], "tasks": ["-"], "methods": {"-": own_config(node)}}
    # Nobody else's nodes are of this stage.
    probe = cast(FeatureProbe, PROBES.validate(fields))
    return probe, probe.methods["-"]


def own_config(node: Node) -> dict[str, Any]:
    """The config of a curve, without what the key says beside it."""
    return {k: v for k, v in node.config.items() if k not in ("kind", "backbone")}
