"""Building the graph of an experiment: every key is known before anything runs.

A node's key is computed from its config, the keys of its inputs and the code it reaches, so the whole graph
can be drawn, explained and checked against the artifact store without loading a backbone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from permafrost.flows.data_lookup import DataLookup
from permafrost.flows.evaluations import EvaluationCell, evaluation_texts, texts_name
from permafrost.flows.experiment import Experiment, GridCell
from permafrost.flows.experiment_nodes import CellName, ExperimentNodes
from permafrost.flows.graph import Graph, Input, Node
from permafrost.flows.matched_widths import with_widths_matched
from permafrost.flows.methods.cell import BackboneUse, Cell
from permafrost.flows.methods.evaluated import EvaluatedMethod, EvaluationSite, RoleStores
from permafrost.flows.methods.method import Method
from permafrost.flows.nodes.adapting import adapt_node, planned_identity, store_node
from permafrost.flows.nodes.extraction import extract_node, source_of
from permafrost.flows.nodes.layer_choice import chosen_input
from permafrost.flows.nodes.reading import Reading, corpus_input, reading
from permafrost.flows.origins import origins
from permafrost.flows.recipes import recipe_on
from permafrost.flows.report import report_node
from permafrost.flows.stores import RecipeStores, resolve_stores
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.extraction.last_layer import with_last_named
from permafrost.stages.extraction.recipes.recipe import recipe_identity
from permafrost.stages.extraction.sizes import BackboneSizes
from permafrost.stages.extraction.target import (
    ExtractTarget,
    ResolvedBackbone,
    resolve_backbone,
)
from permafrost.stages.mteb_evaluation.evaluate import TaskFacts
from permafrost.stages.mteb_evaluation.task import MtebTask, Role
from permafrost.storage.errors import InputError
from permafrost.storage.features.layout import TOKEN_IDS
from permafrost.storage.keys import to_plain
from permafrost.storage.quoting import quoted


@dataclass(frozen=True)
class ExperimentGraph(ExperimentNodes):
    """All nodes, in one graph."""

    report: Node
    """The report's node."""

    @cached_property
    def graph(self) -> Graph:
        """All nodes, in reading order."""
        before = (
            self.corpora,
            self.adapted,
            self.extractions,
            self.choices,
            self.further,
            self.pretrainings,
        )
        fits = [n for name, fit in self.fits.items() for n in (*self.candidates[name], fit)]
        after = (self.probes, self.scores, self.evaluations)
        nodes = [*_all(before), *fits, *_all(after), self.report]
        found = origins(self, self.report)
        # A copy keeps what was computed of the key, which origins are no part of.
        return Graph(n.model_copy(update={"origins": found[n.id]}) for n in nodes)


def _all(groups: Sequence[Mapping[Any, Node]]) -> list[Node]:
    return [node for group in groups for node in group.values()]


def build_graph(experiment: Experiment, data: DataLookup | None = None) -> ExperimentGraph:
    """Resolve the experiment's names and build its graph.

    Args:
        experiment: what it is of.
        data: how data are looked up; if not given, all have to be here.

    Raises:
        InputError: the backbone, a recipe, the capture or a task's files are wrong, a method reads an
            array that is not captured, or a head is matched to a method that has none.
    """
    base = resolve_backbone(experiment.backbone, experiment.store_dtype, experiment.codec)
    named = with_last_named(experiment, base.sizes)
    return _Builder(with_widths_matched(named, base.sizes), base, data or DataLookup()).build()


@dataclass
class _Builder:
    """Creates each node when it is first needed."""

    experiment: Experiment
    _base: ResolvedBackbone
    _data: DataLookup
    _corpora: dict[str, Node] = field(default_factory=dict)
    _extractions: dict[tuple[str, str, int], Node] = field(default_factory=dict)
    _pretrainings: dict[str, Node] = field(default_factory=dict)
    _choices: dict[str, Node] = field(default_factory=dict)
    _adapted: dict[str, Node] = field(default_factory=dict)
    _named: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    _others: dict[BackboneConfig, ResolvedBackbone] = field(default_factory=dict)

    def build(self) -> ExperimentGraph:
        e = self.experiment
        if not self.stores:
            raise InputError(
                "no method or probe of this experiment reads a backbone; give a method of kind head, embed "
                "or linear, or name what is extracted anyway in 'capture'"
            )
        corpora = {task: self.corpus_node(task) for task in (*e.tasks, *self._texts)}
        extractions = {
            (recipe, task, i): self.extraction(recipe, task, i)
            for recipe, stores in self.stores.items()
            for task in stores.tasks
            for i in range(len(stores.targets))
        }
        cells = {(c.method, c.task, c.seed): self._cell(c) for c in e.cells}
        fitted = {name: self._fit_nodes(*name) for name in cells}
        for name, task in e.fitted_elsewhere:
            cell = self._cell(e.cell(name, task, e.seeds[0]))
            fitted[name, task, cell.seed] = self._fit_nodes(name, task, cell.seed)
        further = {
            node.id: node
            for cell in cells.values()
            for node in e.methods[cell.method].further_nodes(cell)
        }
        fits = {name: nodes[-1] for name, nodes in fitted.items()}
        scores = {
            name: node
            for name, cell in cells.items()
            if (node := e.methods[cell.method].score_node(cell, fits[name])) is not None
        }
        probes = {
            (name, curve, task): probe.node(curve, task, self)
            for name, probe in e.probes.items()
            for curve in probe.methods
            for task in probe.tasks
        }
        choices = {c.name: self._choice_node(c.name) for c in e.choice_cells}
        evaluations = {
            (c.name, c.task, c.seed): self._evaluation(c, fits) for c in e.evaluation_cells
        }
        nodes = ExperimentNodes(
            experiment=e,
            stores={name: self._planned(name) for name in self.stores},
            corpora=corpora,
            adapted=self._adapted_nodes(),
            extractions=extractions,
            choices=choices,
            further=further,
            pretrainings={name: self.pretraining(name) for name in e.pretrainings},
            candidates={name: nodes[:-1] for name, nodes in fitted.items()},
            fits=fits,
            probes=probes,
            scores=scores,
            evaluations=evaluations,
        )
        return ExperimentGraph(**vars(nodes), report=report_node(nodes))

    @cached_property
    def stores(self) -> dict[str, RecipeStores]:
        """Feature stores by recipe."""
        return resolve_stores(self.experiment, self._base)

    @property
    def sizes(self) -> BackboneSizes:
        """Sizes of the experiment's backbone."""
        return self._base.sizes

    @cached_property
    def _texts(self) -> dict[str, tuple[MtebTask, Role]]:
        return evaluation_texts(self.experiment.evaluations)

    @cached_property
    def _facts(self) -> dict[MtebTask, TaskFacts]:
        named = {c.config: c.task for c in self.experiment.vector_cells}
        return {config: self._data.facts(task, config) for config, task in named.items()}

    def corpus_node(self, task: str) -> Node:
        """The node of a task's corpus, or of the texts of an evaluation task in a role."""
        if task not in self._corpora:
            if task in self._texts:
                config, role = self._texts[task]
                node = self._data.texts(task, config, role, self._facts[config])
            else:
                node = self._data.corpus(task, self.experiment.tasks[task])
            self._corpora[task] = node
        return self._corpora[task]

    def corpus(self, task: str) -> Input:
        """The corpus of a task."""
        return corpus_input(self.corpus_node(task))

    def extraction(self, recipe: str, task: str, prompt: int) -> Node:
        """The extraction of a task's texts under one prompt of a recipe."""
        name = (recipe, task, prompt)
        if name not in self._extractions:
            stores = self.stores[recipe]
            found = self._store_nodes(recipe)
            source = self.experiment.tasks.get(task)
            self._extractions[name] = extract_node(
                stores.targets[prompt],
                self.corpus(task),
                stores.labels(task)[prompt],
                found[prompt] if found else None,
                None if source is None else source.read_from(),
            )
        return self._extractions[name]

    def reading(
        self, recipe: str, arrays: Sequence[str], task: str, backbone: str | None = None
    ) -> Reading:
        """Features of a task's texts under a recipe."""
        return self._reading(recipe_on(recipe, backbone), arrays, (task,))

    def _reading(self, recipe: str, arrays: Sequence[str], tasks: Sequence[str]) -> Reading:
        names = self._planned(recipe).names
        after = [self.extraction(recipe, t, i).id for t in tasks for i in range(len(names))]
        return reading(names, arrays, self.sizes, after)

    def adapted(self, name: str) -> Node:
        """The node of the backbone that a fine-tuning leaves."""
        if name not in self._adapted:
            e, one = self.experiment, self.experiment.all_adapted[name]
            method = e.methods[one.method]
            fitted = method.fit_nodes(self._cell(e.cell(one.method, one.task, one.seed)))[-1]
            recipe = e.all_recipes[next(iter(method.recipes().values()))]
            base = self._base.target(recipe.members()[0], (TOKEN_IDS.name,))
            self._adapted[name] = adapt_node(name, fitted, base, one.model_dump(mode="json"))
        return self._adapted[name]

    def _store_nodes(self, recipe: str) -> tuple[Node, ...]:
        """What finds out which stores those of a recipe on an adapted backbone are; none for the others."""
        stores = self.stores[recipe]
        if stores.backbone is None:
            return ()
        if recipe not in self._named:
            adapted = self.adapted(stores.backbone)
            self._named[recipe] = tuple(store_node(recipe, adapted, t) for t in stores.targets)
        return self._named[recipe]

    def _planned(self, recipe: str) -> RecipeStores:
        """The stores of a recipe, those of an adapted backbone with what is known of them before training."""
        stores, nodes = self.stores[recipe], self._store_nodes(recipe)
        if not nodes:
            return stores
        named = zip(stores.targets, nodes, strict=True)
        return replace(
            stores,
            targets=tuple(replace(t, identity=planned_identity(node)) for t, node in named),
            names=tuple(node.ref.key for node in nodes),
        )

    def _adapted_nodes(self) -> dict[str, Node]:
        backbones = [self.adapted(name) for name in self.experiment.all_adapted]
        stores = [node for recipe in self.stores for node in self._store_nodes(recipe)]
        return {node.id: node for node in (*backbones, *stores)}

    def _cell(self, cell: GridCell) -> Cell:
        on = self.experiment.methods[cell.method].adapted_backbone
        trained = self.experiment.fitted_on(cell.method, cell.task)
        fitted_on = None if trained == cell.task else trained
        return Cell(**vars(cell), upstream=self, backbone=on, fitted_on=fitted_on)

    def pretraining(self, name: str) -> Node:
        """The node of a pretraining, from which several heads may start."""
        if name not in self._pretrainings:
            self._pretrainings[name] = self.experiment.pretrainings[name].node(name, self)
        return self._pretrainings[name]

    def cell(self, method: str, task: str, seed: int) -> tuple[Method, Cell]:
        """Another method of the experiment, by its name, and what it is on a task."""
        return self.experiment.methods[method], self._cell(self.experiment.cell(method, task, seed))

    def fitted(self, method: str, task: str, seed: int) -> Node:
        """What another method of the experiment has fitted, to be used on a task."""
        return self._fit_nodes(method, task, seed)[-1]

    def _fit_nodes(self, method: str, task: str, seed: int) -> tuple[Node, ...]:
        on = self.experiment.fitted_on(method, task)
        return self.experiment.methods[method].fit_nodes(self.cell(method, on, seed)[1])

    def resolved(self, backbone: BackboneConfig | None) -> ResolvedBackbone:
        """A backbone with its files and sizes; None for the experiment's own."""
        if backbone is None or backbone == self.experiment.backbone:
            return self._base
        if backbone not in self._others:
            e = self.experiment
            self._others[backbone] = resolve_backbone(backbone, e.store_dtype, e.codec)
        return self._others[backbone]

    def target(self, recipe: str) -> ExtractTarget:
        """The store of a recipe, which is no ensemble."""
        (target,) = self.stores[recipe].targets
        return target

    def backbone(self, recipe: str) -> BackboneUse:
        """The experiment's backbone under one recipe.

        Raises:
            InputError: the recipe is an ensemble of prompts.
        """
        first, *others = self.experiment.all_recipes[recipe].members()
        if others:
            raise InputError(
                f"the recipe {quoted(recipe)} is an ensemble of {len(others) + 1} prompts, which a probe "
                f"that runs the backbone cannot read; take one prompt of it"
            )
        target = self._base.target(first, (TOKEN_IDS.name,))
        identity = target.identity
        key = {
            "weights_digest": identity.weights_digest,
            "tokenizer_digest": identity.tokenizer_digest,
            "compute_dtype": identity.compute_dtype,
            "max_length": identity.max_length,
            "recipe": recipe_identity(target.recipe),
        }
        where = {"identity": to_plain(identity), "backbone": source_of(target)}
        return BackboneUse(key, where, target.recipe)

    def choice(self, method: str) -> Input | None:
        """The layers of a method that an evaluation chooses; None where none does."""
        chosen = any(cell.name == method for cell in self.experiment.choice_cells)
        return chosen_input(self._choice_node(method)) if chosen else None

    def _choice_node(self, method: str) -> Node:
        if method not in self._choices:
            cells = [c for c in self.experiment.choice_cells if c.name == method]
            self._require_other_data(method, cells)
            choosing = cells[0].method.choosing()
            assert choosing is not None, "such are the choice cells"
            self._choices[method] = choosing.node(method, [self._site(c, None) for c in cells])
        return self._choices[method]

    def _require_other_data(self, method: str, cells: Sequence[EvaluationCell]) -> None:
        """Raises: InputError: a method would be scored on what its layers are chosen on."""
        e = self.experiment
        scored = {
            c.task: self._facts[c.config].scored_on for c in e.evaluation_cells if c.name == method
        }
        for task in {c.task for c in e.cells if c.method == method and self._data.is_here(c.task)}:
            scored[task] = e.tasks[task].tested_on(self.corpus_node(task).config)
        for task, parts in scored.items():
            for other in cells:
                if not parts.isdisjoint(self._facts[other.config].scored_on):
                    raise InputError(
                        f"the layers of {quoted(method)} are chosen on {quoted(other.task)}, which holds the "
                        f"same data as {quoted(task)}, on which it is scored; choose on other data, or "
                        "leave the method out there"
                    )

    def _evaluation(self, cell: EvaluationCell, fits: dict[CellName, Node]) -> Node:
        fitted, made = None, None
        if cell.needs_fit:
            assert cell.fitted_on is not None, "the experiment was checked for it"
            fitted = self._cell(self.experiment.cell(cell.name, cell.fitted_on, cell.seed))
            made = fits[cell.name, cell.fitted_on, cell.seed]
        site = replace(
            self._site(cell, fitted),
            chosen=self.choice(cell.name),
            chosen_on=self._chosen_on(cell.name),
            tuned_on=self._tuned_on(cell.method),
        )
        return cell.method.evaluation_node(cell.name, cell.seed, site, made)

    def _chosen_on(self, method: str) -> tuple[Input, ...]:
        """The texts of the tasks on which layers of a method are chosen."""
        names = [
            texts_name(cell.task, role)
            for cell in self.experiment.choice_cells
            if cell.name == method
            for role in cell.config.roles
        ]
        return tuple(self.corpus(name) for name in names)

    def _tuned_on(self, method: EvaluatedMethod) -> tuple[Input, ...]:
        """The corpus on which the adapted backbone of a method was tuned."""
        name = method.adapted_backbone
        return () if name is None else (self.corpus(self.experiment.adapted[name].task),)

    def _site(self, cell: EvaluationCell, fitted: Cell | None) -> EvaluationSite:
        e = self.experiment
        arrays = cell.method.vector_arrays(self.sizes)
        readings: dict[str, Reading] = {}
        roles: dict[Role, RoleStores] = {}
        on: dict[Role, str] = {
            role: recipe_on(name, e.backbone_of(cell)) for role, name in cell.recipes.items()
        }
        for role, recipe in on.items():
            if recipe not in readings:
                texts = [texts_name(cell.task, r) for r, n in on.items() if n == recipe]
                readings[recipe] = self._reading(recipe, arrays, texts)
            stores = self._planned(recipe)
            roles[role] = RoleStores(
                recipes=tuple(t.recipe for t in stores.targets),
                identities=tuple(t.identity for t in stores.targets),
                names=stores.names,
                reading=readings[recipe],
            )
        return EvaluationSite(
            task=cell.task,
            config=cell.config,
            facts=self._facts[cell.config],
            roles=roles,
            instructed=cell.instructed,
            fitted=fitted,
        )
