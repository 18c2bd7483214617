"""Linear classifiers on the vectors of a head: `kind: linear_on_head`."""

from typing import Literal

from pydantic import ConfigDict

from permafrost.flows import loaders
from permafrost.flows.context import RunContext
from permafrost.flows.graph import Input, Node
from permafrost.flows.methods.cell import Cell
from permafrost.flows.methods.linear import ClassifierFields
from permafrost.flows.methods.method import CLASSES, Method
from permafrost.flows.nodes.reading import readers, width_of
from permafrost.flows.nodes.summaries import score_summary
from permafrost.flows.stage import Stage
from permafrost.stages.corpus.columns import TaskKind
from permafrost.stages.corpus.source import CorpusConfig
from permafrost.stages.fit.candidates import arrays
from permafrost.stages.fit.config import FitConfig
from permafrost.stages.linear.fitting import linear_examples
from permafrost.stages.linear.on_head import OnHeadConfig, Weights, drawn_head, run_on_head
from permafrost.stages.metrics.records import Role
from permafrost.storage.artifacts import Draft
from permafrost.storage.progress import Progress


class LinearOnHeadMethod(Method, ClassifierFields):
    """A linear classifier on the vectors of a head of the experiment, once per task with classes and seed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["linear_on_head"] = "linear_on_head"
    head: str
    """Name of a method of kind `head`. What it reads is read, and its classifier is not used."""
    weights: Weights = "trained"
    """`trained`: as the method has trained the head on the same task with the same seed; `untrained`: as it
    was drawn from that seed, which trains nothing."""

    @property
    def task_kinds(self) -> tuple[TaskKind, ...]:
        """Classes."""
        return CLASSES

    @property
    def named_tasks(self) -> tuple[str, ...] | None:
        """As given."""
        return self.tasks

    @property
    def is_random(self) -> bool:
        """The head's weights are drawn."""
        return True

    @property
    def read_methods(self) -> tuple[str, ...]:
        """That of the head."""
        return (self.head,)

    def require_readable(self, others: dict[str, Method]) -> None:
        """Check that it is a head with one setting, or a trained one.

        Raises:
            ValueError: it is not.
        """
        ((name, other),) = others.items()
        if (head := other.token_head()) is None:
            raise ValueError(f"{name!r} is of kind {other.kind}; name a method of kind head")
        if self.weights == "untrained" and head.has_grid:
            raise ValueError(
                f"{name!r} chooses among settings after training; name a head without a grid, or read "
                "it trained"
            )

    def role_on(self, task: CorpusConfig | None) -> Role:
        """A control if it is fitted on shuffled labels."""
        return "control" if self.labels == "shuffled" else "method"

    def fit_nodes(self, cell: Cell) -> tuple[Node, ...]:
        """The classifier, fitted and scored on a task."""
        method, of_head = cell.upstream.cell(self.head, cell.task, cell.seed)
        head = method.token_head()
        assert head is not None, "the experiment was checked for it"
        found = head.candidates(of_head.task_kind, of_head.metric, cell.seed)
        read = of_head.reading(head.recipe, arrays(found))
        untrained, inputs = None, [cell.corpus, *read.inputs]
        if self.weights == "trained":
            fitted = cell.upstream.fitted(self.head, cell.task, cell.seed)
            inputs.append(Input(name="head", ref=fitted.id, loader=loaders.HEAD))
        else:
            fit = head.fit(of_head.task_kind, of_head.metric, cell.seed)
            # Without its training, which decides nothing here.
            untrained = FitConfig(head=fit.head, layer=fit.layer, loss=fit.loss, seed=fit.seed)
        fields = self.classifier_fields(cell.metric)
        node = RunOnHead.node(
            f"linear {cell.method} · {cell.task} · seed {cell.seed}",
            OnHeadConfig(**fields, seed=cell.seed, untrained=untrained),
            inputs,
            run_facts={**read.run_facts, **cell.names},
            after=read.after,
        )
        return (node,)


class RunOnHead(Stage):
    """Fits a linear classifier on the vectors of a head on train, chooses on dev, scores test once."""

    name = "linear_on_head"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        config = OnHeadConfig.model_validate(node.config)
        corpus = context.corpus(node.input("corpus"))
        if config.untrained is None:
            head = context.load(node.input("head"))
        else:
            d_in = width_of(node, config.untrained.layer)
            head = drawn_head(config.untrained, d_in, corpus)
        reader = readers(node, context, [head.layer])[head.layer]
        result = run_on_head(config, head, reader, corpus, progress, context.device)
        result.save(draft.folder)
        metrics = result.scores.metrics
        draft.summary = {**score_summary(metrics, node), "converged": metrics["converged"]}

    @classmethod
    def check(cls, node: Node, context: RunContext) -> None:
        config = OnHeadConfig.model_validate(node.config)
        linear_examples(config, context.corpus(node.input("corpus")))
        if (drawn := config.untrained) is not None:
            drawn.head.require_width(width_of(node, drawn.layer))
