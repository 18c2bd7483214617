"""The nodes of an experiment, by their role in it."""

from dataclasses import dataclass
from functools import cached_property

from permafrost.flows.experiment import Experiment
from permafrost.flows.graph import Node
from permafrost.flows.stores import RecipeStores

CellName = tuple[str, str, int]
"""Method, task, seed."""


@dataclass(frozen=True)
class ExperimentNodes:
    """All nodes but that of the report."""

    experiment: Experiment
    stores: dict[str, RecipeStores]
    """By recipe."""
    corpora: dict[str, Node]
    """One per task, and one per role of the texts of local evaluation tasks."""
    extractions: dict[tuple[str, str, int], Node]
    """One per recipe, task and prompt of an ensemble."""
    pretrainings: dict[str, Node]
    """What several heads start from."""
    candidates: dict[CellName, tuple[Node, ...]]
    """What a fit is chosen from; empty where there is nothing to choose."""
    fits: dict[CellName, Node]
    """Trained heads, chosen ones, vectors without training, and baselines that need no features."""
    probes: dict[tuple[str, str, str], Node]
    """By probe, curve and task."""
    scores: dict[CellName, Node]
    """Trained heads and vectors, applied to dev and test."""
    evaluations: dict[CellName, Node]
    """Methods on evaluation tasks."""

    @cached_property
    def results(self) -> dict[CellName, Node]:
        """For every cell of the grid, the node that holds its metrics."""
        names = [(c.method, c.task, c.seed) for c in self.experiment.cells]
        return {name: self.scores.get(name) or self.fits[name] for name in names}
