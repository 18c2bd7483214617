"""The staged DAG of an experiment: every key is known before anything runs.

A node's key is made of its config, the keys of its inputs and the code it reaches, so the whole graph
can be drawn, explained and checked against the artifact store without loading a backbone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from flows.embed_nodes import embed_node, similarity_node
from flows.evaluation_nodes import evaluation_facts, evaluation_nodes, texts_node
from flows.evaluations import evaluation_texts, whitened_for_evaluations
from flows.experiment import (
    DEFAULT_RECIPE,
    EmbedMethod,
    Experiment,
    HeadMethod,
    LayersMethod,
    MethodConfig,
)
from flows.head_nodes import control_node, fit_node, score_node
from flows.layer_nodes import layers_fit_node, layers_score_node, pretrain_node
from flows.linear_method import LinearMethod
from flows.linear_nodes import linear_node
from flows.nodes import Node, code_of
from flows.probe_nodes import probe_nodes
from flows.report_node import report_node
from flows.stores import RecipeStores, SharedBackbone, resolve_stores
from stages.corpus.config import CorpusConfig, corpus_facts
from stages.corpus.corpus import Corpus, build_corpus
from stages.embed import StoredFeatures
from stages.extraction.backbone import choose_device
from stages.extraction.extract import extract
from stages.extraction.planning import ExtractionPlan, plan_extraction
from stages.extraction.sizes import BackboneSizes
from stages.extraction.target import ExtractTarget
from stages.extraction.too_long import refuse_too_long
from stages.mteb_evaluation import LocalTask, Role, TaskFacts, task_corpus
from storage.artifacts import ArtifactSpec, ArtifactStore, Draft
from storage.durable import write_json
from storage.features.store import FeatureStore, store_folder
from storage.keys import to_plain
from storage.progress import Progress
from storage.texts import each_once


@dataclass(frozen=True)
class Dag:
    """All nodes of an experiment under one home."""

    experiment: Experiment
    home: Path
    stores: dict[str, RecipeStores]
    """By recipe."""
    backbone: SharedBackbone = field(default_factory=SharedBackbone)

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """Where the nodes publish."""
        return ArtifactStore(self.home)

    @cached_property
    def corpus_nodes(self) -> dict[str, Node]:
        """One corpus per task, and one per role of the texts of local evaluation tasks."""
        tasks = {task: self._corpus_node(task, c) for task, c in self.experiment.tasks.items()}
        return tasks | {name: texts_node(self, name, *t) for name, t in self._texts.items()}

    @cached_property
    def evaluation_facts(self) -> dict[Any, TaskFacts]:
        """What is known of evaluation tasks, by their config."""
        return evaluation_facts(self.experiment)

    @cached_property
    def _texts(self) -> dict[str, tuple[LocalTask, Role]]:
        return evaluation_texts(self.experiment)

    def _corpus_node(self, task: str, config: CorpusConfig) -> Node:
        spec = ArtifactSpec(stage="corpus", config=corpus_facts(config), code=code_of(build_corpus))

        def make(draft: Draft, progress: Progress) -> None:
            corpus = self.corpus(task)
            corpus.save(draft.folder)
            draft.summary = {
                "task": corpus.task,
                "n_texts": len(corpus.texts),
                "n_examples": corpus.examples.num_rows,
            }

        return Node("corpus", f"corpus {task}", spec, make, lambda: self._known(task))

    def _known(self, task: str) -> None:
        self.corpus(task)

    def corpus(self, task: str) -> Corpus:
        """The corpus of a task, from its artifact; built in memory (and not kept) if not published yet."""
        if task not in self._corpora:
            ref = self.corpus_nodes[task].spec.ref
            done = self.artifacts.is_done(ref)
            self._corpora[task] = (
                Corpus.load(self.artifacts.open(ref)) if done else self._built(task)
            )
        return self._corpora[task]

    def _built(self, task: str) -> Corpus:
        if task in self._texts:
            return task_corpus(*self._texts[task])
        return build_corpus(self.experiment.tasks[task])

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        return {}

    def unique_texts(self, tasks: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Texts of these tasks and their digests, each once, in order of first appearance."""
        if len(tasks) == 1:
            corpus = self.corpus(tasks[0])
            return corpus.texts, corpus.digests
        corpora = [self.corpus(task) for task in tasks]
        return each_once([c.texts for c in corpora], [c.digests for c in corpora])

    @cached_property
    def extract_nodes(self) -> list[Node]:
        """One extraction per store, for all tasks that read it."""
        return [
            self._extract_node(stores, target, label)
            for stores in self.stores.values()
            # Without texts known ahead, evaluations extract those that they are asked for.
            if stores.tasks
            for target, label in zip(stores.targets, stores.labels(), strict=True)
        ]

    def _extract_node(self, stores: RecipeStores, target: ExtractTarget, label: str) -> Node:
        spec = ArtifactSpec(
            stage="extract",
            # No code: hours of compute are not lost to a refactor; `verify --recompute` guards it instead.
            config={"store": to_plain(target.identity), "arrays": list(target.arrays)},
            inputs=tuple(str(self.corpus_nodes[task].spec.ref) for task in stores.tasks),
        )

        def make(draft: Draft, progress: Progress) -> None:
            texts, digests = self.unique_texts(stores.tasks)
            runtime = self.experiment.runtime.extract
            load = partial(self.backbone.load, target, runtime.device)
            report = extract(target, self.home, texts, digests, runtime, progress, load=load)
            draft.summary = {
                "store_id": report.store.store_id,
                "n_texts": len(texts),
                "n_tokens_computed": report.n_tokens,
                "n_cells_computed": report.n_cells,
                "n_truncated": report.n_truncated,
                "split_from": report.split_from,
            }
            write_json(draft.folder / "view.json", draft.summary)

        def check() -> None:
            runtime = self.experiment.runtime.extract
            choose_device(runtime.device)
            if runtime.too_long == "refuse":
                texts, digests = self.unique_texts(stores.tasks)
                refuse_too_long(target, self.home, texts, digests, runtime.block_texts)

        return Node("extract", label, spec, make, check)

    def plan_extractions(self) -> list[ExtractionPlan]:
        """What the feature stores lack for this experiment, in the order of `extract_nodes`."""
        return [
            plan_extraction(target, self.home, *self.unique_texts(stores.tasks))
            for stores in self.stores.values()
            if stores.tasks
            for target in stores.targets
        ]

    def open_stores(self, recipe: str = DEFAULT_RECIPE) -> list[FeatureStore]:
        """The feature stores of a recipe, once extracted."""
        return [
            FeatureStore.open(store_folder(self.home, t.identity.store_id), expect=t.identity)
            for t in self.stores[recipe].targets
        ]

    def members(self, recipe: str, task: str) -> list[StoredFeatures]:
        """Features of a task's texts, one per prompt of an ensemble."""
        stores = zip(self.open_stores(recipe), self.stores[recipe].targets, strict=True)
        digests = self.corpus(task).digests
        return [StoredFeatures(store, target.sizes, digests) for store, target in stores]

    @cached_property
    def sizes(self) -> BackboneSizes:
        """Of the experiment's backbone."""
        return next(iter(self.stores.values())).targets[0].sizes

    @cached_property
    def cells(self) -> list[tuple[str, str, int, MethodConfig]]:
        """The grid: (method, task, seed, config). A baseline without randomness has one seed."""
        e = self.experiment
        return [
            (name, task, seed, method)
            for task in e.tasks
            for name, method in e.methods.items()
            if task in e.tasks_of(method)
            for seed in e.seeds_of(method)
        ]

    @cached_property
    def pretrain_nodes(self) -> dict[str, Node]:
        """What several heads start from."""
        return {name: pretrain_node(self, name) for name in self.experiment.pretrainings}

    @cached_property
    def fit_nodes(self) -> dict[tuple[str, str, int], Node]:
        """Trained heads, vectors without training, and baselines that need no features."""
        found = {(n, t, s): self._fit_node(n, t, s, m) for n, t, s, m in self.cells}
        e = self.experiment
        for name, task in whitened_for_evaluations(e):
            found[name, task, e.seeds[0]] = embed_node(self, name, task, e.embed_methods[name])
        return found

    def _fit_node(self, name: str, task: str, seed: int, method: MethodConfig) -> Node:
        if isinstance(method, EmbedMethod):
            return embed_node(self, name, task, method)
        if isinstance(method, LinearMethod):
            return linear_node(self, name, task, seed, method)
        if isinstance(method, LayersMethod):
            return layers_fit_node(self, name, task, seed, method)
        if isinstance(method, HeadMethod):
            return fit_node(self, name, task, seed, method)
        return control_node(self, name, task, method)

    @property
    def device(self) -> str:
        """Where heads are trained and scored."""
        return str(choose_device(self.experiment.runtime.device))

    @cached_property
    def probe_nodes(self) -> dict[tuple[str, str, str], Node]:
        """Curves of probes: one node per (probe, curve, task)."""
        return probe_nodes(self)

    @cached_property
    def score_nodes(self) -> dict[tuple[str, str, int], Node]:
        """Trained heads and vectors, applied to dev and test."""
        found: dict[tuple[str, str, int], Node] = {}
        for name, task, seed, method in self.cells:
            if isinstance(method, HeadMethod):
                found[name, task, seed] = score_node(self, name, task, seed, method)
            elif isinstance(method, EmbedMethod):
                found[name, task, seed] = similarity_node(self, name, task, method)
            elif isinstance(method, LayersMethod):
                found[name, task, seed] = layers_score_node(self, name, task, seed, method)
        return found

    @cached_property
    def evaluation_nodes(self) -> dict[tuple[str, str, int], Node]:
        """Methods on evaluation tasks."""
        return evaluation_nodes(self)

    @cached_property
    def result_nodes(self) -> dict[tuple[str, str, int], Node]:
        """For every cell of the grid, the node that holds its metrics."""
        return {
            cell[:3]: self.score_nodes.get(cell[:3]) or self.fit_nodes[cell[:3]]
            for cell in self.cells
        }

    @cached_property
    def report_node(self) -> Node:
        """Everything together."""
        return report_node(self)

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node, in an order in which it can run."""
        return [
            *self.corpus_nodes.values(),
            *self.extract_nodes,
            *self.pretrain_nodes.values(),
            *self.fit_nodes.values(),
            *self.probe_nodes.values(),
            *self.score_nodes.values(),
            *self.evaluation_nodes.values(),
            self.report_node,
        ]

    @cached_property
    def specs(self) -> dict[str, ArtifactSpec]:
        """Every node's spec by `<stage>/<key>`."""
        return {str(n.spec.ref): n.spec for n in self.nodes}

    def is_done(self, node: Node) -> bool:
        """Published; and for an extraction, the feature store still holds every cell."""
        if not self.artifacts.is_done(node.spec.ref):
            return False
        if node.level != "extract":
            return True
        at = [n.spec.ref for n in self.extract_nodes].index(node.spec.ref)
        return self.plan_extractions()[at].nothing_to_do


def build_dag(experiment: Experiment, home: Path) -> Dag:
    """Resolve the experiment's names to facts and lay out its DAG.

    Raises:
        InputError: the backbone, a recipe, the capture or a task's files are wrong, or a method reads an
            array that is not captured.
    """
    return Dag(experiment, home, resolve_stores(experiment))
