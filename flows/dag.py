"""The staged DAG of an experiment: every key is known before anything runs.

A node's key is made of its config, the keys of its inputs and the code it reaches, so the whole graph
can be drawn, explained and checked against the artifact store without loading a backbone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from flows.experiment import Experiment, HeadMethod, MethodConfig
from stages.controls import run_control
from stages.corpus.config import CorpusConfig, corpus_facts
from stages.corpus.corpus import Corpus, build_corpus
from stages.extraction.extract import extract
from stages.extraction.planning import ExtractionPlan, plan_extraction
from stages.extraction.target import ExtractTarget, resolve_target
from stages.fit import FitData, fit, load_head
from stages.report.html import page_digest
from stages.report.report import write_report
from stages.report.tables import Cell
from stages.score import ScoreConfig, score
from storage.artifacts import ArtifactSpec, ArtifactStore, Draft
from storage.durable import write_json
from storage.errors import InputError
from storage.features.layout import TOKEN_IDS
from storage.features.store import FeatureStore, store_folder
from storage.fingerprint import CodeFingerprint, fingerprint
from storage.keys import to_plain
from storage.progress import Progress
from storage.readers import open_reader

PACKAGES = ("stages", "storage")
"""Packages whose functions count in a code fingerprint; flows only wire."""

Level = Literal["corpus", "extract", "fit", "score", "report"]
LEVELS: tuple[Level, ...] = ("corpus", "extract", "fit", "score", "report")
"""Order of execution; nodes of one level are independent of each other."""


@dataclass(frozen=True)
class Node:
    """One stage run: what it is, what its key is made of, and how to make it."""

    level: Level
    label: str
    spec: ArtifactSpec
    make: Callable[[Draft, Progress], None]


@dataclass(frozen=True)
class Dag:
    """All nodes of an experiment under one home."""

    experiment: Experiment
    home: Path
    target: ExtractTarget

    @cached_property
    def artifacts(self) -> ArtifactStore:
        """Where the nodes publish."""
        return ArtifactStore(self.home)

    @cached_property
    def corpus_nodes(self) -> dict[str, Node]:
        """One corpus per task."""
        return {task: self._corpus_node(task, c) for task, c in self.experiment.tasks.items()}

    def _corpus_node(self, task: str, config: CorpusConfig) -> Node:
        spec = ArtifactSpec(
            stage="corpus", config=corpus_facts(config), code=_code(build_corpus).definitions
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
            config = self.experiment.tasks[task]
            self._corpora[task] = (
                Corpus.load(self.artifacts.open(ref)) if done else build_corpus(config)
            )
        return self._corpora[task]

    @cached_property
    def _corpora(self) -> dict[str, Corpus]:
        return {}

    def unique_texts(self) -> tuple[list[str], list[str]]:
        """Texts of all tasks and their digests, each once, in order of first appearance."""
        by_digest: dict[str, str] = {}
        for task in self.experiment.tasks:
            corpus = self.corpus(task)
            for digest, text in zip(corpus.digests, corpus.texts, strict=True):
                by_digest.setdefault(digest, text)
        return list(by_digest.values()), list(by_digest)

    @cached_property
    def extract_node(self) -> Node:
        """One extraction for all tasks: the backbone is loaded once."""
        spec = ArtifactSpec(
            stage="extract",
            # No code: hours of compute are not lost to a refactor; `verify --recompute` guards it instead.
            config={"store": to_plain(self.target.identity), "arrays": list(self.target.arrays)},
            inputs=tuple(str(n.spec.ref) for n in self.corpus_nodes.values()),
        )

        def make(draft: Draft, progress: Progress) -> None:
            texts, digests = self.unique_texts()
            runtime = self.experiment.runtime.extract
            report = extract(self.target, self.home, texts, digests, runtime, progress)
            draft.summary = {
                "store_id": report.store.store_id,
                "n_texts": len(texts),
                "n_tokens_computed": report.n_tokens,
                "n_cells_computed": report.n_cells,
                "n_truncated": report.n_truncated,
            }
            write_json(draft.folder / "view.json", draft.summary)

        return Node("extract", "extract", spec, make)

    def plan_extraction(self) -> ExtractionPlan:
        """What the feature store lacks for this experiment."""
        return plan_extraction(self.target, self.home, *self.unique_texts())

    def store(self) -> FeatureStore:
        """The feature store, once extracted."""
        return FeatureStore.open(
            store_folder(self.home, self.target.identity.store_id), expect=self.target.identity
        )

    def _feature_input(self, array: str) -> str:
        return f"features/{self.target.identity.store_id}/{array}"

    def _fit_data(self, task: str, arrays: Sequence[str]) -> FitData:
        corpus, store = self.corpus(task), self.store()
        budget = self.experiment.runtime.memory_bytes
        readers = {a: open_reader(store, a, corpus.digests, budget_bytes=budget) for a in arrays}
        return FitData(
            readers=readers,
            examples=corpus.examples,
            label_names=corpus.label_names,
            digests=corpus.digests,
        )

    @cached_property
    def cells(self) -> list[tuple[str, str, int, MethodConfig]]:
        """The grid: (method, task, seed, config). A baseline without randomness has one seed."""
        e = self.experiment
        return [
            (name, task, seed, method)
            for task in e.tasks
            for name, method in e.methods.items()
            for seed in (e.seeds if isinstance(method, HeadMethod) else e.seeds[:1])
        ]

    @cached_property
    def fit_nodes(self) -> dict[tuple[str, str, int], Node]:
        """Trained heads, and baselines that need no features."""
        return {(n, t, s): self._fit_node(n, t, s, m) for n, t, s, m in self.cells}

    def _fit_node(self, name: str, task: str, seed: int, method: MethodConfig) -> Node:
        corpus_key = str(self.corpus_nodes[task].spec.ref)
        if not isinstance(method, HeadMethod):
            spec = ArtifactSpec(
                stage="control",
                config=to_plain(method),
                inputs=(corpus_key,),
                code=_code(run_control).definitions,
            )

            def make_control(draft: Draft, progress: Progress) -> None:
                run_control(method, self.corpus(task)).save(draft.folder)

            return Node("fit", f"control {name} · {task}", spec, make_control)

        config = method.fit_config(seed)
        spec = ArtifactSpec(
            stage="fit",
            config=to_plain(config),
            inputs=(corpus_key, *(self._feature_input(a) for a in config.arrays())),
            code=_code(fit).definitions,
        )

        def make_fit(draft: Draft, progress: Progress) -> None:
            result = fit(config, self._fit_data(task, config.arrays()), progress)
            result.save(draft.folder)

        return Node("fit", f"fit {name} · {task} · seed {seed}", spec, make_fit)

    @cached_property
    def score_nodes(self) -> dict[tuple[str, str, int], Node]:
        """Trained heads applied to dev and test."""
        return {
            (n, t, s): self._score_node(n, t, s, m)
            for n, t, s, m in self.cells
            if isinstance(m, HeadMethod)
        }

    def _score_node(self, name: str, task: str, seed: int, method: HeadMethod) -> Node:
        fit_ref = self.fit_nodes[name, task, seed].spec.ref
        arrays = method.fit_config(seed).arrays()
        config = ScoreConfig()
        spec = ArtifactSpec(
            stage="score",
            config=to_plain(config),
            inputs=(
                str(fit_ref),
                str(self.corpus_nodes[task].spec.ref),
                *(self._feature_input(a) for a in arrays),
            ),
            code=_code(score).definitions,
        )

        def make(draft: Draft, progress: Progress) -> None:
            head = load_head(self.artifacts.open(fit_ref))
            result = score(config, head, self._fit_data(task, [head.layer]))
            result.save(draft.folder)
            draft.summary = {
                "method": name,
                "task": task,
                "seed": seed,
                **{k: result.metrics[k] for k in ("metric", "dev", "test")},
            }

        return Node("score", f"score {name} · {task} · seed {seed}", spec, make)

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
                "grid": [list(c[:3]) for c in self.cells],
            },
            inputs=(
                *(str(n.spec.ref) for n in self.result_nodes.values()),
                *(str(n.spec.ref) for n in self.corpus_nodes.values()),
                self._feature_input(TOKEN_IDS.name),
            ),
            code=_code(write_report).definitions,
        )

        def make(draft: Draft, progress: Progress) -> None:
            write_report(
                self.experiment.report,
                [self._report_cell(*cell) for cell in self.cells],
                {task: self.corpus(task) for task in self.experiment.tasks},
                self._token_strings,
                self._provenance(),
                draft.folder,
            )

        return Node("report", "report", spec, make)

    def _report_cell(self, name: str, task: str, seed: int, method: MethodConfig) -> Cell:
        ref = self.result_nodes[name, task, seed].spec.ref
        trained = isinstance(method, HeadMethod)
        is_control = not trained or method.labels == "shuffled"
        return Cell(
            method=name,
            task=task,
            seed=seed,
            role="control" if is_control else "method",
            folder=self.artifacts.open(ref),
            history=self.artifacts.open(self.fit_nodes[name, task, seed].spec.ref)
            / "history.parquet"
            if trained
            else None,
            key=str(ref),
        )

    def _token_strings(self, digest: str) -> list[str] | None:
        reader = open_reader(
            self.store(), TOKEN_IDS.name, [digest], budget_bytes=1 << 20, precision="stored"
        )
        _, rows = next(reader.in_order(1))
        return list(self.target.tokenizer.convert_ids_to_tokens(rows.data.reshape(-1).tolist()))

    def _provenance(self) -> dict[str, str]:
        store = self.store()
        receipt = store.checked_receipt(store.segments()[0], TOKEN_IDS.name)
        return {
            "backbone": f"{self.target.files.source} (weights sha256 {self.target.files.weights_digest})",
            "tokenizer": f"sha256 {self.target.files.tokenizer_digest}",
            "recipe": str(self.target.recipe.model_dump(mode="json")),
            "feature store": store.store_id,
            **{f"extracted with {k}": v for k, v in receipt.provenance.items()},
        }

    @cached_property
    def nodes(self) -> list[Node]:
        """Every node, in an order in which it can run."""
        return [
            *self.corpus_nodes.values(),
            self.extract_node,
            *self.fit_nodes.values(),
            *self.score_nodes.values(),
            self.report_node,
        ]

    @cached_property
    def specs(self) -> dict[str, ArtifactSpec]:
        """Every node's spec by `<stage>/<key>`."""
        return {str(n.spec.ref): n.spec for n in self.nodes}

    def is_done(self, node: Node) -> bool:
        """Published; and for the extraction, the feature store still holds every cell."""
        if not self.artifacts.is_done(node.spec.ref):
            return False
        return node.level != "extract" or self.plan_extraction().nothing_to_do


def build_dag(experiment: Experiment, home: Path) -> Dag:
    """Resolve the experiment's names to facts and lay out its DAG.

    Raises:
        InputError: the backbone, recipe, capture or a task's files are wrong, or a method reads an array
            that is not captured.
    """
    dag = Dag(experiment, home, resolve_target(experiment.extract_config))
    captured = set(dag.target.arrays)
    for name, method in experiment.methods.items():
        for array in method.fit_config(0).arrays() if isinstance(method, HeadMethod) else ():
            if array not in captured:
                raise InputError(
                    f"method {name!r} reads {array}, but the experiment captures only "
                    f"{', '.join(sorted(captured))}; add it to 'capture' or change the method's layer"
                )
    return dag


def _code(entry: Callable[..., Any]) -> CodeFingerprint:
    return fingerprint(entry, PACKAGES)
