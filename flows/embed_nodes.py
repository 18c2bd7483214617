"""Nodes of vectors without training: made of cached features, and scored by their cosines."""

from typing import TYPE_CHECKING

from flows.experiment import EmbedMethod
from flows.nodes import Node, code_of, score_summary
from stages.embed import StoredFeatures, embed_corpus, require_embeddable, required_arrays
from stages.similarity import SimilarityConfig, require_graded, score_vectors
from storage.artifacts import ArtifactSpec, Draft
from storage.keys import to_plain
from storage.progress import Progress

if TYPE_CHECKING:
    from flows.dag import Dag


def embed_node(dag: "Dag", name: str, task: str, method: EmbedMethod) -> Node:
    """Vectors of a task's texts."""
    config, recipe = method.config, method.recipe
    arrays = required_arrays(config, dag.sizes)
    spec = ArtifactSpec(
        stage="embed",
        config=to_plain(config),
        inputs=(str(dag.corpus_nodes[task].spec.ref), *dag.stores[recipe].inputs(arrays)),
        code=code_of(embed_corpus, StoredFeatures),
    )

    def make(draft: Draft, progress: Progress) -> None:
        found = embed_corpus(config, dag.members(recipe, task), dag.corpus(task), progress)
        found.save(draft.folder)
        draft.summary = {"method": name, "task": task, **found.choice}

    def check() -> None:
        require_embeddable(config, dag.sizes, dag.corpus(task))

    return Node("fit", f"embed {name} · {task}", spec, make, check)


def similarity_node(dag: "Dag", name: str, task: str, method: EmbedMethod) -> Node:
    """Vectors against the grades of dev and test."""
    made = dag.fit_nodes[name, task, dag.experiment.seeds[0]].spec.ref
    config = SimilarityConfig(metric=method.metric)
    spec = ArtifactSpec(
        stage="score",
        config=to_plain(config),
        inputs=(str(made), str(dag.corpus_nodes[task].spec.ref)),
        code=code_of(score_vectors),
    )

    def make(draft: Draft, progress: Progress) -> None:
        result = score_vectors(config, dag.artifacts.open(made), dag.corpus(task))
        result.save(draft.folder)
        draft.summary = score_summary(result.metrics, method=name, task=task)

    def check() -> None:
        require_graded(dag.corpus(task))

    return Node("score", f"score {name} · {task}", spec, make, check)
