"""Nodes of evaluations: texts of local tasks, and methods on tasks."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from flows.evaluations import EvaluationCell, evaluation_cells, recipe_of, roles_of
from flows.experiment import EmbedMethod, Experiment, HeadMethod, LayersMethod
from flows.nodes import Node, code_of
from stages.corpus.overlap import train_texts
from stages.embed import CorpusVectors, EmbedConfig, StoredFeatures, required_arrays, with_layers
from stages.embed.config import AUTO
from stages.encoder.fitted import load_latent_head
from stages.encoder.vectors import HeadVectors, LatentVectors, MethodVectors
from stages.extraction.extract import extract
from stages.fit import load_head
from stages.mteb_evaluation import (
    Embedding,
    LocalTask,
    Role,
    TaskFacts,
    evaluate_task,
    task_corpus,
    task_facts,
)
from storage.artifacts import ArtifactRef, ArtifactSpec, Draft
from storage.keys import to_plain
from storage.progress import Progress

if TYPE_CHECKING:
    from flows.dag import Dag

Evaluated = EmbedMethod | HeadMethod | LayersMethod
"""Methods that have a vector for a text; of the last, only those with a unified embedding."""

_VECTORS = {EmbedMethod: MethodVectors, HeadMethod: HeadVectors, LayersMethod: LatentVectors}
"""What makes the vectors of a method."""

_READ_BY: dict[type[Evaluated], Callable[..., object]] = {
    EmbedMethod: CorpusVectors,
    HeadMethod: load_head,
    LayersMethod: load_latent_head,
}
"""What reads what was fitted for a method."""

CellName = tuple[str, str, int]
"""Method, task, seed."""


def texts_node(dag: "Dag", name: str, config: LocalTask, role: Role) -> Node:
    """The texts that a local task asks for in one role, so that they are extracted with all others."""
    facts = dag.evaluation_facts[config]
    spec = ArtifactSpec(
        stage="corpus",
        config={"kind": "mteb_texts", "role": role, "task": facts.key},
        code=code_of(task_corpus),
    )

    def make(draft: Draft, progress: Progress) -> None:
        corpus = dag.corpus(name)
        corpus.save(draft.folder)
        draft.summary = {"task": name, "n_texts": len(corpus.texts)}

    return Node("corpus", f"corpus {name}", spec, make, lambda: _known(dag, name))


def _known(dag: "Dag", name: str) -> None:
    dag.corpus(name)


def evaluation_facts(experiment: Experiment) -> dict[object, TaskFacts]:
    """What is known of every evaluation task before it runs, by its config."""
    return {cell.config: task_facts(cell.config) for cell in evaluation_cells(experiment)}


def evaluation_nodes(dag: "Dag") -> dict[CellName, Node]:
    """One node per (method, task, seed)."""
    return {
        (cell.method, cell.task, cell.seed): _evaluation_node(dag, cell)
        for cell in evaluation_cells(dag.experiment)
    }


def _evaluation_node(dag: "Dag", cell: EvaluationCell) -> Node:
    method = dag.experiment.methods[cell.method]
    assert isinstance(method, Evaluated)
    roles = roles_of(cell.config)
    recipes: dict[Role, str] = {role: recipe_of(method, role, cell) for role in roles}
    arrays = _arrays(dag, method, cell)
    made = _made_from(dag, method, cell)
    stores = {
        role: [to_plain(t.identity) for t in dag.stores[recipe].targets]
        for role, recipe in recipes.items()
    }
    identity = {
        "stores": stores,
        "method": to_plain(method.config) if isinstance(method, EmbedMethod) else "head",
        "made_from": None if made is None else str(made),
    }
    spec = ArtifactSpec(
        stage="evaluate",
        config={"task": dag.evaluation_facts[cell.config].key, "embedding": identity},
        inputs=(
            *(i for r in dict.fromkeys(recipes.values()) for i in dag.stores[r].inputs(arrays)),
            *([] if made is None else [str(made)]),
        ),
        code=code_of(
            *(evaluate_task, StoredFeatures, _VECTORS[type(method)]),
            *(() if made is None else (train_texts, _READ_BY[type(method)])),
        ),
    )

    def make(draft: Draft, progress: Progress) -> None:
        filled: list[int] = []
        vectors = _vectors(dag, method, made, len(stores[roles[0]]))
        embedding = Embedding(
            cell.method,
            vectors,
            partial(_features, dag, recipes, filled, progress),
            identity,
            progress,
            n_parameters=0 if isinstance(vectors, MethodVectors) else vectors.head.n_parameters,
            trained_on=_trained_on(dag, method, cell),
        )
        result = evaluate_task(cell.config, cell.task, embedding)
        result.save(draft.folder)
        draft.summary = {
            "method": cell.method,
            "task": cell.task,
            "seed": cell.seed,
            **{k: result.metrics[k] for k in ("metric", "test", "texts_in_train")},
            "instructions": cell.instructed,
            "n_tokens_computed": sum(filled),
        }

    label = f"evaluate {cell.method} · {cell.task}"
    if not isinstance(method, EmbedMethod):
        label += f" · seed {cell.seed}"
    return Node("evaluate", label, spec, make)


def _arrays(dag: "Dag", method: Evaluated, cell: EvaluationCell) -> tuple[str, ...]:
    """What the method reads."""
    if isinstance(method, EmbedMethod):
        return required_arrays(method.config, dag.sizes)
    if isinstance(method, LayersMethod):
        return method.latents.arrays(dag.sizes)
    assert cell.fitted_on is not None
    return dag.experiment.fit_config(method, cell.fitted_on, cell.seed).arrays()


def _made_from(dag: "Dag", method: Evaluated, cell: EvaluationCell) -> ArtifactRef | None:
    """Where the trained head lies, or the layers that were chosen and the whitening that was fitted."""
    if isinstance(method, EmbedMethod) and method.layers != AUTO and method.whitening is None:
        return None
    assert cell.fitted_on is not None
    return dag.fit_nodes[cell.method, cell.fitted_on, cell.seed].spec.ref


def _vectors(
    dag: "Dag", method: Evaluated, made: ArtifactRef | None, n_members: int
) -> HeadVectors | LatentVectors | MethodVectors:
    if isinstance(method, EmbedMethod):
        config: EmbedConfig = method.config
        if made is None:
            return MethodVectors(config, dag.sizes, n_members)
        fitted = CorpusVectors.load(dag.artifacts.open(made))
        if config.layers == AUTO:
            config = with_layers(config, tuple(k for k in fitted.layers if k != "final"))
        return MethodVectors(config, dag.sizes, n_members, fitted.whitening)
    assert made is not None
    folder = dag.artifacts.open(made)
    if isinstance(method, LayersMethod):
        vectors = load_latent_head(folder, method.latents.arrays(dag.sizes), str(made))
    else:
        vectors = HeadVectors(load_head(folder))
    vectors.module.to(dag.device)
    return vectors


def _trained_on(dag: "Dag", method: Evaluated, cell: EvaluationCell) -> frozenset[str] | None:
    """Digests of the texts that a method learnt from; None of one that learnt from none."""
    if isinstance(method, EmbedMethod) and method.whitening is None:
        return None
    assert cell.fitted_on is not None
    corpus = dag.corpus(cell.fitted_on)
    known = frozenset(corpus.digests[int(text)] for text in train_texts(corpus.examples))
    if isinstance(method, LayersMethod) and method.encoders is not None:
        # Its autoencoders saw every text of their corpus, whatever its split.
        known |= frozenset(dag.corpus(dag.experiment.pretrainings[method.encoders].task).digests)
    return known


def _features(
    dag: "Dag",
    recipes: Mapping[Role, str],
    filled: list[int],
    progress: Progress,
    role: Role,
    texts: Mapping[str, str],
) -> Sequence[StoredFeatures]:
    """Stored features of texts; those that no corpus announced are extracted now, one thread at a time."""
    targets, found = dag.stores[recipes[role]].targets, list[StoredFeatures]()
    runtime = dag.experiment.runtime.extract
    for target in targets:
        load = partial(dag.backbone.load, target, runtime.device)
        with dag.backbone.extracting:
            report = extract(
                target,
                dag.home,
                list(texts.values()),
                list(texts),
                runtime,
                progress,
                load=load,
            )
        filled.append(report.n_tokens)
        found.append(StoredFeatures(report.store, target.sizes, list(texts)))
    return found
