"""Nodes of evaluations: texts of local tasks, and methods on tasks."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from flows.evaluations import EvaluationCell, evaluation_cells, recipe_of, roles_of
from flows.experiment import EmbedMethod, Experiment, HeadMethod
from flows.nodes import Node, code_of
from stages.embed import CorpusVectors, EmbedConfig, StoredFeatures, required_arrays, with_layers
from stages.embed.config import AUTO
from stages.encoder.vectors import HeadVectors, MethodVectors
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

CellName = tuple[str, str, int]
"""Method, task, seed."""


def texts_node(dag: "Dag", name: str, config: LocalTask, role: Role) -> Node:
    """The texts that a local task asks for in one role, so that they are extracted with all others."""
    facts = dag.evaluation_facts[config]
    spec = ArtifactSpec(
        stage="corpus",
        config={"kind": "mteb_texts", "role": role, "task": facts.key},
        code=code_of(task_corpus).definitions,
    )

    def make(draft: Draft, progress: Progress) -> None:
        corpus = dag.corpus(name)
        corpus.save(draft.folder)
        draft.summary = {"task": name, "n_texts": len(corpus.texts)}

    return Node("corpus", f"corpus {name}", spec, make)


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
    assert isinstance(method, EmbedMethod | HeadMethod)
    roles = roles_of(cell.config)
    recipes: dict[Role, str] = {role: recipe_of(method, role) for role in roles}
    if isinstance(method, EmbedMethod):
        arrays = required_arrays(method.config, dag.sizes)
    else:
        assert cell.fitted_on is not None
        fitted = dag.experiment.fit_config(method, cell.fitted_on, cell.seed)
        arrays = fitted.arrays()
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
        # Two entries: the evaluation sees its vectors through a protocol only.
        code={
            **code_of(evaluate_task).definitions,
            **code_of(
                MethodVectors if isinstance(method, EmbedMethod) else HeadVectors
            ).definitions,
        },
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
            n_parameters=vectors.head.n_parameters if isinstance(vectors, HeadVectors) else 0,
        )
        result = evaluate_task(cell.config, cell.task, embedding)
        result.save(draft.folder)
        draft.summary = {
            "method": cell.method,
            "task": cell.task,
            "seed": cell.seed,
            **{k: result.metrics[k] for k in ("metric", "test")},
            "n_tokens_computed": sum(filled),
        }

    label = f"evaluate {cell.method} · {cell.task}"
    if isinstance(method, HeadMethod):
        label += f" · seed {cell.seed}"
    return Node("evaluate", label, spec, make)


def _made_from(
    dag: "Dag", method: EmbedMethod | HeadMethod, cell: EvaluationCell
) -> ArtifactRef | None:
    """Where the trained head lies, or the layers that were chosen."""
    if isinstance(method, EmbedMethod) and method.layers != AUTO:
        return None
    assert cell.fitted_on is not None
    return dag.fit_nodes[cell.method, cell.fitted_on, cell.seed].spec.ref


def _vectors(
    dag: "Dag", method: EmbedMethod | HeadMethod, made: ArtifactRef | None, n_members: int
) -> HeadVectors | MethodVectors:
    if isinstance(method, HeadMethod):
        assert made is not None
        return HeadVectors(load_head(dag.artifacts.open(made)).to(dag.device))
    config: EmbedConfig = method.config
    if made is not None:
        chosen = CorpusVectors.load(dag.artifacts.open(made)).layers
        config = with_layers(config, tuple(k for k in chosen if k != "final"))
    return MethodVectors(config, dag.sizes, n_members)


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
