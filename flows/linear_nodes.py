"""Nodes of linear methods."""

from typing import TYPE_CHECKING

from flows.linear_method import LinearMethod
from flows.nodes import Node, code_of
from stages.embed import StoredFeatures, required_arrays
from stages.linear import linear_examples, run_linear
from storage.artifacts import ArtifactSpec, Draft
from storage.keys import to_plain
from storage.progress import Progress

if TYPE_CHECKING:
    from flows.dag import Dag


def linear_node(dag: "Dag", name: str, task: str, seed: int, method: LinearMethod) -> Node:
    """A linear classifier, fitted and scored on a task."""
    config = dag.experiment.linear_config(method, task, seed)
    arrays = dict.fromkeys(a for v in config.vectors for a in required_arrays(v, dag.sizes))
    spec = ArtifactSpec(
        stage="linear",
        config=to_plain(config),
        inputs=(
            str(dag.corpus_nodes[task].spec.ref),
            *dag.stores[method.recipe].inputs(list(arrays)),
        ),
        code=code_of(run_linear, StoredFeatures),
    )

    def make(draft: Draft, progress: Progress) -> None:
        members = dag.members(method.recipe, task)
        result = run_linear(config, members, dag.corpus(task), progress)
        result.save(draft.folder)
        kept = ("metric", "dev", "test", "converged")
        draft.summary = {
            "method": name,
            "task": task,
            **({"seed": seed} if method.is_random else {}),
            **{k: result.scores.metrics[k] for k in kept},
        }

    seeded = f" · seed {seed}" if method.is_random else ""

    def check() -> None:
        linear_examples(config, dag.corpus(task))

    return Node("fit", f"linear {name} · {task}{seeded}", spec, make, check)
