"""The staged DAG of an experiment: every key is known before anything runs.

A node's key is made of its config, the keys of its inputs and the code it reaches, so the whole graph
can be drawn, explained and checked against the artifact store without loading a backbone.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

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
from flows.layer_nodes import layers_fit_node, layers_score_node, pretrain_node
from flows.linear_method import LinearMethod
from flows.linear_nodes import linear_node
from flows.nodes import Node, code_of
from flows.probe_nodes import probe_nodes
from flows.report_inputs import (
    attention_inputs,
    attention_rows,
    extractions,
    layer_curves,
    pretraining_runs,
    probe_curves,
    report_cells,
    report_provenance,
    text_tokens,
)
from flows.stores import RecipeStores, SharedBackbone, resolve_stores
from stages.controls import run_control
from stages.corpus.config import CorpusConfig, corpus_facts
from stages.corpus.corpus import Corpus, build_corpus
from stages.embed import StoredFeatures, embed_corpus, required_arrays
from stages.extraction.backbone import choose_device
from stages.extraction.extract import extract
from stages.extraction.planning import ExtractionPlan, plan_extraction
from stages.extraction.sizes import BackboneSizes
from stages.extraction.target import ExtractTarget
from stages.fit import FitData, fit, load_head
from stages.mteb_evaluation import LocalTask, Role, TaskFacts, task_corpus
from stages.report.html import page_digest
from stages.report.report import write_report
from stages.score import ScoreConfig, score
from stages.similarity import SimilarityConfig, score_vectors
from storage.artifacts import ArtifactSpec, ArtifactStore, Draft
from storage.durable import DRAFT_PREFIX, write_json
from storage.features.layout import TOKEN_IDS
from storage.features.store import FeatureStore, store_folder
from storage.keys import to_plain
from storage.progress import Progress
from storage.readers import open_reader

CHECKPOINT_EVERY_S = 15.0
"""Work that a killed fit loses, at most, beyond the epoch it was in."""


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
        spec = ArtifactSpec(
            stage="corpus", config=corpus_facts(config), code=code_of(build_corpus).definitions
        )

        def make(draft: Draft, progress: Progress) -> None:
            corpus = build_corpus(config)
            corpus.save(draft.folder)
            draft.summary = {
                "task": corpus.task,
                "n_texts": len(corpus.texts),
                "n_examples": corpus.examples.num_rows,
            }

        return Node("corpus", f"corpus {task}", spec, make)

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

    def unique_texts(self, tasks: Sequence[str]) -> tuple[list[str], list[str]]:
        """Texts of these tasks and their digests, each once, in order of first appearance."""
        by_digest: dict[str, str] = {}
        for task in tasks:
            corpus = self.corpus(task)
            for digest, text in zip(corpus.digests, corpus.texts, strict=True):
                by_digest.setdefault(digest, text)
        return list(by_digest.values()), list(by_digest)

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
            }
            write_json(draft.folder / "view.json", draft.summary)

        return Node("extract", label, spec, make)

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

    def _feature_input(self, array: str) -> str:
        (key,) = self.stores[DEFAULT_RECIPE].inputs([array])
        return key

    def _fit_data(self, task: str, arrays: Sequence[str]) -> FitData:
        corpus, (store,) = self.corpus(task), self.open_stores()
        budget = self.experiment.runtime.memory_bytes
        readers = {a: open_reader(store, a, corpus.digests, budget_bytes=budget) for a in arrays}
        return FitData(
            readers=readers,
            examples=corpus.examples,
            label_names=corpus.label_names,
            digests=corpus.digests,
            task=corpus.task,
        )

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
            found[name, task, e.seeds[0]] = self._embed_node(name, task, e.embed_methods[name])
        return found

    def _fit_node(self, name: str, task: str, seed: int, method: MethodConfig) -> Node:
        corpus_key = str(self.corpus_nodes[task].spec.ref)
        if isinstance(method, EmbedMethod):
            return self._embed_node(name, task, method)
        if isinstance(method, LinearMethod):
            return linear_node(self, name, task, seed, method)
        if isinstance(method, LayersMethod):
            return layers_fit_node(self, name, task, seed, method)
        if not isinstance(method, HeadMethod):
            control = self.experiment.control_config(method, task)
            spec = ArtifactSpec(
                stage="control",
                config=to_plain(control),
                inputs=(corpus_key,),
                code=code_of(run_control).definitions,
            )

            def make_control(draft: Draft, progress: Progress) -> None:
                run_control(control, self.corpus(task)).save(draft.folder)

            return Node("fit", f"control {name} · {task}", spec, make_control)

        config = self.experiment.fit_config(method, task, seed)
        spec = ArtifactSpec(
            stage="fit",
            config=to_plain(config),
            inputs=(corpus_key, *(self._feature_input(a) for a in config.arrays())),
            code=code_of(fit).definitions,
        )

        def make_fit(draft: Draft, progress: Progress) -> None:
            data = self._fit_data(task, config.arrays())
            # By the artifact's key, which code is part of; a draft, so that it stays on this machine and
            # garbage collection finds what a killed run left.
            kept = self.artifacts.root / "fit" / f"{DRAFT_PREFIX}{spec.ref.key}-checkpoint"
            result = fit(config, data, progress, self.device, kept / "fit.pt", CHECKPOINT_EVERY_S)
            result.save(draft.folder)
            shutil.rmtree(kept, ignore_errors=True)

        return Node("fit", f"fit {name} · {task} · seed {seed}", spec, make_fit)

    @property
    def device(self) -> str:
        """Where heads are trained and scored."""
        return str(choose_device(self.experiment.runtime.device))

    def _embed_node(self, name: str, task: str, method: EmbedMethod) -> Node:
        config, recipe = method.config, method.recipe
        arrays = required_arrays(config, self.sizes)
        spec = ArtifactSpec(
            stage="embed",
            config=to_plain(config),
            inputs=(
                str(self.corpus_nodes[task].spec.ref),
                *self.stores[recipe].inputs(arrays),
            ),
            code=code_of(embed_corpus).definitions,
        )

        def make(draft: Draft, progress: Progress) -> None:
            found = embed_corpus(config, self.members(recipe, task), self.corpus(task), progress)
            found.save(draft.folder)
            draft.summary = {"method": name, "task": task, **found.choice}

        return Node("fit", f"embed {name} · {task}", spec, make)

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
                found[name, task, seed] = self._score_node(name, task, seed, method)
            elif isinstance(method, EmbedMethod):
                found[name, task, seed] = self._similarity_node(name, task, method)
            elif isinstance(method, LayersMethod):
                found[name, task, seed] = layers_score_node(self, name, task, seed, method)
        return found

    def _similarity_node(self, name: str, task: str, method: EmbedMethod) -> Node:
        made = self.fit_nodes[name, task, self.experiment.seeds[0]].spec.ref
        config = SimilarityConfig(metric=method.metric)
        spec = ArtifactSpec(
            stage="score",
            config=to_plain(config),
            inputs=(str(made), str(self.corpus_nodes[task].spec.ref)),
            code=code_of(score_vectors).definitions,
        )

        def make(draft: Draft, progress: Progress) -> None:
            result = score_vectors(config, self.artifacts.open(made), self.corpus(task))
            result.save(draft.folder)
            draft.summary = {
                "method": name,
                "task": task,
                **{k: result.metrics[k] for k in ("metric", "dev", "test")},
            }

        return Node("score", f"score {name} · {task}", spec, make)

    def _score_node(self, name: str, task: str, seed: int, method: HeadMethod) -> Node:
        fit_ref = self.fit_nodes[name, task, seed].spec.ref
        arrays = self.experiment.fit_config(method, task, seed).arrays()
        config = ScoreConfig()
        spec = ArtifactSpec(
            stage="score",
            config=to_plain(config),
            inputs=(
                str(fit_ref),
                str(self.corpus_nodes[task].spec.ref),
                *(self._feature_input(a) for a in arrays),
            ),
            code=code_of(score).definitions,
        )

        def make(draft: Draft, progress: Progress) -> None:
            head = load_head(self.artifacts.open(fit_ref))
            result = score(config, head, self._fit_data(task, [head.layer]), self.device)
            result.save(draft.folder)
            draft.summary = {
                "method": name,
                "task": task,
                "seed": seed,
                **{k: result.metrics[k] for k in ("metric", "dev", "test")},
            }

        return Node("score", f"score {name} · {task} · seed {seed}", spec, make)

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
        spec = ArtifactSpec(
            stage="report",
            config={
                "name": self.experiment.name,
                "report": to_plain(self.experiment.report),
                # The page's template and style are not Python, so no code fingerprint sees them.
                "page": page_digest(),
                "grid": [*(list(c[:3]) for c in self.cells), *map(list, self.evaluation_nodes)],
            },
            inputs=(
                *(str(n.spec.ref) for n in self.result_nodes.values()),
                *(str(n.spec.ref) for n in self.evaluation_nodes.values()),
                *(str(n.spec.ref) for n in self.corpus_nodes.values()),
                *(str(n.spec.ref) for n in self.probe_nodes.values()),
                *(str(n.spec.ref) for n in self.pretrain_nodes.values()),
                next(iter(self.stores.values())).inputs([TOKEN_IDS.name])[0],
                *attention_inputs(self),
            ),
            code=code_of(write_report).definitions,
        )

        def make(draft: Draft, progress: Progress) -> None:
            write_report(
                self.experiment.report,
                report_cells(self),
                {task: self.corpus(task) for task in self.experiment.tasks},
                partial(text_tokens, self),
                report_provenance(self),
                draft.folder,
                layer_curves=layer_curves(self),
                probes=probe_curves(self),
                pretrainings=pretraining_runs(self),
                extractions=extractions(self),
                attention=attention_rows(self),
            )

        return Node("report", "report", spec, make)

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
