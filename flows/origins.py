"""Where the nodes of an experiment stand in it."""

import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from permafrost.flows.experiment_nodes import CellName, ExperimentNodes
from permafrost.flows.graph import Node
from permafrost.flows.methods.cell import CHOSEN
from permafrost.flows.origin import WEIGHTS_OF, Origin
from permafrost.flows.recipes import DEFAULT_RECIPE

Placed = Iterator[tuple[Node, Origin]]


def origins(nodes: ExperimentNodes, report: Node) -> dict[str, tuple[Origin, ...]]:
    """The places of every node, by id; nodes with equal keys have those of all."""
    found: dict[str, list[Origin]] = {}
    written = _Sections(nodes)
    for node, origin in (*written.shared(), *written.cells(), *written.further()):
        places = found.setdefault(node.id, [])
        if origin not in places:
            places.append(origin)
    found[report.id] = [written.origin(written.section(nodes.experiment.report))]
    return {id: tuple(places) for id, places in found.items()}


class _Sections:
    """Sections of the experiment, each turned into JSON once."""

    def __init__(self, nodes: ExperimentNodes) -> None:
        self._nodes, self._e = nodes, nodes.experiment
        self._known: dict[int, dict[str, Any]] = {}

    def section(self, config: BaseModel) -> dict[str, Any]:
        # By way of text, which has no infinities: what is recorded beside a result must never fail.
        if id(config) not in self._known:
            self._known[id(config)] = json.loads(config.model_dump_json())
        return self._known[id(config)]

    def origin(self, written: dict[str, Any], **names: Any) -> Origin:
        return Origin(experiment=self._e.name, written=written, **names)

    def shared(self) -> Placed:
        """Corpora, extractions, choices of layers, pretrainings and probes."""
        e, nodes = self._e, self._nodes
        for task, node in nodes.corpora.items():
            config = e.tasks.get(task)
            written = node.run_facts["config"] if config is None else self.section(config)
            yield node, self.origin(written, task=task)
        for (recipe, task, i), node in nodes.extractions.items():
            several = len(nodes.stores[recipe].targets) > 1
            name = "" if recipe == DEFAULT_RECIPE else recipe
            name += f" [{i + 1}]" if several else ""
            yield node, self.origin(self.section(e.backbone), name=name, task=task)
        for name, node in nodes.choices.items():
            chosen_on = node.run_facts["task"]
            yield node, self.origin(self.section(e.methods[name]), name=name, task=chosen_on)
        for name, node in nodes.pretrainings.items():
            section = self.section(e.pretrainings[name])
            yield node, self.origin(section, name=name, task=e.pretrainings[name].task)
        for (probe, curve, task), node in nodes.probes.items():
            section = self.section(e.probes[probe])
            yield node, self.origin(section, name=f"{probe}: {curve}", task=task)

    def cells(self) -> Placed:
        """Methods on tasks and on evaluations."""
        nodes = self._nodes
        for cell, node in nodes.fits.items():
            for candidate in nodes.candidates[cell]:
                yield candidate, self._of(cell, _choice(candidate, cell))
            yield node, self._of(cell)
        for cell, node in nodes.scores.items():
            origin = self._of(cell)
            if node.inputs_named(CHOSEN):
                shown = {WEIGHTS_OF: self._e.report.weights_of}
                origin = origin.model_copy(update={"written": origin.written | shown})
            yield node, origin
        for cell, node in nodes.evaluations.items():
            yield node, self._of(cell)

    def _of(self, cell: CellName, choice: str = "") -> Origin:
        name, task, seed = cell
        method = self._e.methods[name]
        drawn = seed if method.is_random else None
        return self.origin(self.section(method), name=name, task=task, seed=drawn, choice=choice)

    def further(self) -> Placed:
        """What methods need beside those, and adapted backbones: by their labels."""
        for node in (*self._nodes.further.values(), *self._nodes.adapted.values()):
            label = node.label.removeprefix(f"{node.stage} ")
            yield node, self.origin({}, **{"task" if node.stage == "corpus" else "name": label})


def _choice(candidate: Node, cell: CellName) -> str:
    name, task, seed = cell
    label = candidate.label.removeprefix(f"{candidate.stage} {name} · {task} · seed {seed}")
    return label.removeprefix(" · ")
