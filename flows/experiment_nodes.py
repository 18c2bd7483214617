"""The nodes of an experiment, by role."""

from dataclasses import dataclass
from functools import cached_property

from permafrost.flows.experiment import Experiment
from permafrost.flows.graph import Node
from permafrost.flows.stores import RecipeStores

CellName = tuple[str, str, int]
"""Method, task, seed."""


@dataclass(frozen=True)
class ExperimentNodes:
    """All nodes except the report's."""

    experiment: Experiment
    stores: dict[str, RecipeStores]
    """Feature stores by recipe, or recipe on an adapted backbone."""
    corpora: dict[str, Node]
    """One per task, and one per role of the texts of local evaluation tasks."""
    adapted: dict[str, Node]
    """Adapted backbones, and what finds out which stores theirs are, by id."""
    extractions: dict[tuple[str, str, int], Node]
    """One per recipe, task and prompt of an ensemble."""
    choices: dict[str, Node]
    """What chooses layers of methods by their scores on an evaluation, by method."""
    further: dict[str, Node]
    """Corpora and extractions that methods need beside those, by id."""
    pretrainings: dict[str, Node]
    """Pretrainings, from which several heads may start."""
    candidates: dict[CellName, tuple[Node, ...]]
    """The fits among which one is chosen; empty if there is no choice."""
    fits: dict[CellName, Node]
    """Trained or chosen heads, training-free vectors, and baselines that need no features."""
    probes: dict[tuple[str, str, str], Node]
    """Probes, by probe, curve and task."""
    scores: dict[CellName, Node]
    """Scores of trained heads and vectors on dev and test."""
    evaluations: dict[CellName, Node]
    """Methods on evaluation tasks."""

    @cached_property
    def results(self) -> dict[CellName, Node]:
        """For every cell of the grid, the node with its metrics."""
        names = [(c.method, c.task, c.seed) for c in self.experiment.cells]
        return {name: self.scores.get(name) or self.fits[name] for name in names}
