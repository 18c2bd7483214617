"""Nodes of trained heads, and of controls, which are given nothing to learn from."""

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from flows.control_methods import BagOfWordsMethod, LengthMethod
from flows.experiment import HeadMethod
from flows.nodes import Node, code_of, score_summary
from flows.recipes import DEFAULT_RECIPE
from stages.controls import require_control, run_control
from stages.fit import FitData, fit, load_head, require_trainable
from stages.heads import AdaPoolHead, build_head
from stages.score import ScoreConfig, score, scored_examples
from storage.artifacts import ArtifactSpec, Draft
from storage.drafts import DRAFT_PREFIX
from storage.keys import to_plain
from storage.progress import Progress
from storage.readers import open_reader

if TYPE_CHECKING:
    from flows.dag import Dag

CHECKPOINT_EVERY_S = 15.0
"""Work that a killed fit loses, at most, beyond the epoch it was in."""


def control_node(dag: "Dag", name: str, task: str, method: LengthMethod | BagOfWordsMethod) -> Node:
    """A control, fitted and scored on a task."""
    config = dag.experiment.control_config(method, task)
    spec = ArtifactSpec(
        stage="control",
        config=to_plain(config),
        inputs=(str(dag.corpus_nodes[task].spec.ref),),
        code=code_of(run_control),
    )

    def make(draft: Draft, progress: Progress) -> None:
        run_control(config, dag.corpus(task)).save(draft.folder)

    def check() -> None:
        require_control(config, dag.corpus(task))

    return Node("fit", f"control {name} · {task}", spec, make, check)


def fit_node(dag: "Dag", name: str, task: str, seed: int, method: HeadMethod) -> Node:
    """A head trained on the features of a task."""
    config = dag.experiment.fit_config(method, task, seed)
    spec = ArtifactSpec(
        stage="fit",
        config=to_plain(config),
        inputs=(str(dag.corpus_nodes[task].spec.ref), *_inputs(dag, config.arrays())),
        code=code_of(fit, open_reader),
    )

    def make(draft: Draft, progress: Progress) -> None:
        data = _fit_data(dag, task, config.arrays())
        # By the artifact's key, which code is part of; a draft, so that it stays on this machine and
        # garbage collection finds what a killed run left.
        kept = dag.artifacts.root / "fit" / f"{DRAFT_PREFIX}{spec.ref.key}-checkpoint"
        result = fit(config, data, progress, dag.device, kept / "fit.pt", CHECKPOINT_EVERY_S)
        result.save(draft.folder)
        shutil.rmtree(kept, ignore_errors=True)

    def check() -> None:
        (target,) = dag.stores[DEFAULT_RECIPE].targets
        for candidate in config.candidates():
            if isinstance(candidate.head, AdaPoolHead):  # the only one whose sizes may not fit
                build_head(candidate.head, target.width(candidate.layer), torch.Generator())
        data = _examples(dag, task)
        require_trainable(config, data)
        scored_examples(data)

    return Node("fit", f"fit {name} · {task} · seed {seed}", spec, make, check)


def score_node(dag: "Dag", name: str, task: str, seed: int, method: HeadMethod) -> Node:
    """A trained head on dev and test."""
    made = dag.fit_nodes[name, task, seed].spec.ref
    arrays = dag.experiment.fit_config(method, task, seed).arrays()
    config = ScoreConfig()
    spec = ArtifactSpec(
        stage="score",
        config=to_plain(config),
        inputs=(str(made), str(dag.corpus_nodes[task].spec.ref), *_inputs(dag, arrays)),
        code=code_of(score, load_head, open_reader),
    )

    def make(draft: Draft, progress: Progress) -> None:
        head = load_head(dag.artifacts.open(made))
        result = score(config, head, _fit_data(dag, task, [head.layer]), dag.device)
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, method=name, task=task, seed=seed)

    return Node("score", f"score {name} · {task} · seed {seed}", spec, make)


def _inputs(dag: "Dag", arrays: Sequence[str]) -> tuple[str, ...]:
    """Keys of the arrays, in their order."""
    found: list[str] = []
    for array in arrays:
        found += dag.stores[DEFAULT_RECIPE].inputs([array])
    return tuple(found)


def _examples(dag: "Dag", task: str) -> FitData:
    """Without features."""
    corpus = dag.corpus(task)
    return FitData({}, corpus.examples, corpus.label_names, corpus.digests, corpus.task)


def _fit_data(dag: "Dag", task: str, arrays: Sequence[str]) -> FitData:
    corpus, (store,) = dag.corpus(task), dag.open_stores()
    budget = dag.experiment.runtime.memory_bytes
    return FitData(
        readers={a: open_reader(store, a, corpus.digests, budget_bytes=budget) for a in arrays},
        examples=corpus.examples,
        label_names=corpus.label_names,
        digests=corpus.digests,
        task=corpus.task,
    )
