"""The node of the report, which everything else goes into."""

from permafrost.flows.experiment_nodes import ExperimentNodes
from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.nodes.extraction import Extract, source_of
from permafrost.flows.nodes.graphs import are_descriptions
from permafrost.flows.nodes.reading import corpus_input, reading
from permafrost.flows.nodes.reporting import (
    AttentionSource,
    CellEntry,
    ExtractionEntry,
    PretrainingEntry,
    ProbeEntry,
    Report,
    StoreEntry,
    TokenSource,
)
from permafrost.flows.recipes import DEFAULT_RECIPE
from permafrost.flows.swept import swept_curves
from permafrost.flows.unread import unread_notes
from permafrost.stages.extraction.recipes.recipe import recipe_identity
from permafrost.stages.report.cells import read_results
from permafrost.stages.report.page_files import page_digest
from permafrost.storage.features.layout import TOKEN_IDS


def report_node(nodes: ExperimentNodes) -> Node:
    """Everything together. Names are shown, so each is in the key, beside what it names."""
    e = nodes.experiment
    cells = [*_grid_cells(nodes), *_evaluation_cells(nodes)]
    probes = [
        ProbeEntry(
            probe=name,
            kind=e.probes[name].kind,
            section=e.probes[name].section,
            caption=e.probes[name].caption,
            curve=curve,
            task=task,
            ref=node.id,
        )
        for (name, curve, task), node in nodes.probes.items()
    ]
    pretrainings = [
        PretrainingEntry(
            name=name,
            task=e.pretrainings[name].task,
            layers=tuple(i.ref.rpartition("/")[2] for i in node.inputs if i.name == "features"),
            ref=node.id,
            measured_on=e.pretrainings[name].measured_on,
        )
        for name, node in nodes.pretrainings.items()
        if e.pretrainings[name].reconstructs
    ]
    stores = [
        StoreEntry(
            recipe=name,
            identities=tuple(t.identity for t in s.targets),
            names=s.names,
            recipes=tuple(recipe_identity(t.recipe) for t in s.targets),
        )
        for name, s in nodes.stores.items()
    ]
    results = dict.fromkeys([c.result for c in cells])
    shown = next(iter(nodes.stores.values()))
    first = shown.targets[0]
    tokens = reading(shown.names[:1], [TOKEN_IDS.name], first.sizes, ())
    attention = _attention(nodes)
    extractions = [
        *nodes.extractions.values(),
        *(n for n in nodes.further.values() if n.stage == Extract.name),
    ]
    inputs = [
        *(Input(name="result", ref=r, loader=import_path(read_results)) for r in results),
        *(corpus_input(n).model_copy(update={"name": t}) for t, n in nodes.corpora.items()),
        *(
            Input(name="probe", ref=p.ref, loader=import_path(e.probes[p.probe].loader))
            for p in probes
        ),
        *map(_pretraining_input, pretrainings),
        *tokens.inputs,
        *(() if attention is None else attention[1]),
    ]
    default = nodes.stores.get(DEFAULT_RECIPE)
    return Report.node(
        "report",
        {
            "name": e.name,
            "report": e.report,
            "metrics": e.metrics,
            # The page's template and style are not Python, so no code fingerprint sees them.
            "page": page_digest(),
            "cells": cells,
            "tasks": [[task, nodes.corpora[task].id] for task in e.tasks],
            "unread": unread_notes(nodes),
            "probes": probes,
            "pretrainings": pretrainings,
            "stores": stores,
            "curves": swept_curves(e, first.sizes),
        },
        inputs,
        run_facts={
            "backbone": source_of(first),
            "tokens": None if default is None else TokenSource.of(default.targets[0]),
            "attention": None if attention is None else attention[0],
            "extractions": [ExtractionEntry(label=n.label, ref=n.id) for n in extractions],
            "descriptions": [n.id for n in nodes.further.values() if are_descriptions(n)],
        },
        after=[n.id for n in extractions],
    )


def _pretraining_input(entry: PretrainingEntry) -> Input:
    # Imported here, as what draws takes a second.
    from permafrost.stages.report.pretraining import read_pretrainings
    from permafrost.stages.report.pretraining_elsewhere import read_elsewhere

    loader = read_pretrainings if entry.measured_on is None else read_elsewhere
    return Input(name="pretraining", ref=entry.ref, loader=import_path(loader))


def _grid_cells(nodes: ExperimentNodes) -> list[CellEntry]:
    entries: list[CellEntry] = []
    for cell in nodes.experiment.cells:
        name = (cell.method, cell.task, cell.seed)
        method, scored = nodes.experiment.methods[cell.method], nodes.scores.get(name)
        kind = cell.task_config.task_kind
        entries.append(
            CellEntry(
                method=cell.method,
                task=cell.task,
                seed=cell.seed,
                is_random=method.is_random,
                role=method.role_on(cell.task_config),
                must_be_at_chance=method.must_be_at_chance(cell.task_config),
                category=kind,
                part="tasks",
                loss=method.loss_on(kind),
                tunes_backbone=method.tunes_backbone,
                result=nodes.results[name].id,
                fit=nodes.fits[name].id,
                candidates=tuple(node.id for node in nodes.candidates[name]),
                score=None if scored is None else scored.id,
            )
        )
    return entries


def _evaluation_cells(nodes: ExperimentNodes) -> list[CellEntry]:
    return [
        CellEntry(
            method=cell.name,
            task=cell.task,
            seed=cell.seed,
            is_random=cell.method.is_random,
            role=cell.method.role_on(None),
            must_be_at_chance=cell.method.must_be_at_chance(None),
            category=cell.config.category,
            part="evaluations",
            loss=None,
            tunes_backbone=cell.method.tunes_backbone,
            result=nodes.evaluations[cell.name, cell.task, cell.seed].id,
            fit=None,
            candidates=(),
            score=nodes.evaluations[cell.name, cell.task, cell.seed].id,
        )
        for cell in nodes.experiment.evaluation_cells
    ]


def _attention(nodes: ExperimentNodes) -> tuple[AttentionSource, tuple[Input, ...]] | None:
    """The attention rows of the first recipe that has some."""
    for recipe, stores in nodes.stores.items():
        target = stores.targets[0]
        arrays = tuple(a for a in target.arrays if a.startswith("attention_rows/"))
        if arrays and len(stores.targets) == 1 and stores.tasks and stores.backbone is None:
            name = target.recipe.name() if recipe == DEFAULT_RECIPE else recipe
            source = AttentionSource(
                recipe=name,
                arrays=arrays,
                tokens=TokenSource.of(target),
                # Rows are shown of texts of tasks, not of those that evaluations ask for.
                corpora=tuple(
                    nodes.corpora[task].id
                    for task in stores.tasks
                    if task in nodes.experiment.tasks
                ),
            )
            read = reading(stores.names, arrays, target.sizes, ())
            return source, read.inputs
    return None
