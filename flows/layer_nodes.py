"""Nodes of the FREEZE! family: autoencoders on generic texts, pair heads on the latents of every layer."""

from typing import TYPE_CHECKING

import numpy as np

from flows.experiment import Latents, LayersMethod
from flows.nodes import Node, code_of, score_summary
from stages.freeze import (
    fit_corpus,
    load_autoencoders,
    pretrain,
    read_latents,
    require_encoders,
    require_pairs,
    require_texts,
    score_corpus,
)
from stages.similarity import SimilarityConfig
from storage.artifacts import ArtifactSpec, Draft
from storage.keys import to_plain
from storage.progress import Progress
from storage.readers import open_reader

if TYPE_CHECKING:
    from flows.dag import Dag

_READING = (read_latents, open_reader)


def pretrain_node(dag: "Dag", name: str) -> Node:
    """Layer autoencoders of a pretraining."""
    pretraining = dag.experiment.pretrainings[name]
    config, task, latents = pretraining.autoencoder, pretraining.task, pretraining.latents
    spec = ArtifactSpec(
        stage="pretrain",
        config=to_plain(config),
        inputs=(str(dag.corpus_nodes[task].spec.ref), *_inputs(dag, latents)),
        code=code_of(pretrain, *_READING),
    )

    def make(draft: Draft, progress: Progress) -> None:
        result = pretrain(config, _read(dag, latents, task), progress, dag.device)
        result.save(draft.folder)
        draft.summary = {"pretraining": name, "task": task}

    def check() -> None:
        require_texts(len(dag.corpus(task).texts))

    return Node("pretrain", f"pretrain {name}", spec, make, check)


def layers_fit_node(dag: "Dag", name: str, task: str, seed: int, method: LayersMethod) -> Node:
    """A pair head trained on the train pairs of a task."""
    config = method.fit_config(seed)
    encoders = None if method.encoders is None else dag.pretrain_nodes[method.encoders].spec.ref
    spec = ArtifactSpec(
        stage="fit",
        config={"kind": "layers", **to_plain(config), "label_range": list(method.label_range)},
        inputs=(
            str(dag.corpus_nodes[task].spec.ref),
            *_inputs(dag, method.latents),
            *([] if encoders is None else [str(encoders)]),
        ),
        code=code_of(fit_corpus, load_autoencoders, *_READING),
    )

    def make(draft: Draft, progress: Progress) -> None:
        result = fit_corpus(
            config,
            _read(dag, method.latents, task),
            dag.corpus(task),
            method.label_range,
            None if encoders is None else load_autoencoders(dag.artifacts.open(encoders)),
            progress,
            dag.device,
        )
        result.save(draft.folder)

    def check() -> None:
        require_pairs(dag.corpus(task), method.label_range)
        if method.encoders is not None:
            pretraining = dag.experiment.pretrainings[method.encoders]
            n_layers, n_given = (
                len(latents.arrays(dag.sizes)) for latents in (method.latents, pretraining.latents)
            )
            require_encoders(method.head, n_layers, pretraining.autoencoder.encoders, n_given)

    return Node("fit", f"fit {name} · {task} · seed {seed}", spec, make, check)


def layers_score_node(dag: "Dag", name: str, task: str, seed: int, method: LayersMethod) -> Node:
    """A trained pair head on dev and test."""
    made = dag.fit_nodes[name, task, seed].spec.ref
    config = SimilarityConfig(metric=method.metric)
    corpus_key = str(dag.corpus_nodes[task].spec.ref)
    spec = ArtifactSpec(
        stage="score",
        config=to_plain(config),
        inputs=(str(made), corpus_key, *_inputs(dag, method.latents)),
        code=code_of(score_corpus, *_READING),
    )

    def make(draft: Draft, progress: Progress) -> None:
        latents = _read(dag, method.latents, task)
        result = score_corpus(config, dag.artifacts.open(made), latents, dag.corpus(task))
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, method=name, task=task, seed=seed)

    return Node("score", f"score {name} · {task} · seed {seed}", spec, make)


def _inputs(dag: "Dag", latents: Latents) -> tuple[str, ...]:
    return dag.stores[latents.recipe].inputs(latents.arrays(dag.sizes))


def _read(dag: "Dag", latents: Latents, task: str) -> np.ndarray:
    (store,) = dag.open_stores(latents.recipe)
    digests, budget = dag.corpus(task).digests, dag.experiment.runtime.memory_bytes
    arrays = latents.arrays(dag.sizes)
    return read_latents([open_reader(store, a, digests, budget_bytes=budget) for a in arrays])
