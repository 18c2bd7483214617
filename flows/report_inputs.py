"""What the report of an experiment is made from."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from numpy.typing import NDArray

from flows.control_methods import BagOfWordsMethod, LengthMethod
from flows.evaluations import evaluation_cells
from flows.experiment import DEFAULT_RECIPE, HeadMethod, LayersMethod, MethodConfig
from flows.linear_method import LinearMethod
from stages.corpus.config import task_kind
from stages.extraction.recipes import OPENING, PLACEHOLDER, recipe_identity
from stages.layer_probe import LayerScores
from stages.probes import ProbeCurves
from stages.report.attention_rows import AttentionRows, TextAttention
from stages.report.cells import Costs, Role
from stages.report.costs import Extraction
from stages.report.layer_curves import LAYER_CURVES
from stages.report.pretraining import PretrainingRun
from stages.report.probe_curves import PROBE_CURVES
from stages.report.tables import Cell
from stages.report.tokens import Token
from storage.artifacts import ArtifactRef
from storage.durable import read_json
from storage.features.layout import TOKEN_IDS
from storage.readers import open_reader

if TYPE_CHECKING:
    from flows.dag import Dag

_PLACEHOLDERS = {PLACEHOLDER: "<PST>", OPENING: "<B-PST>"}


def report_cells(dag: "Dag") -> list[Cell]:
    """Every cell of the grid and every evaluation, and where the results lie."""
    cells: list[Cell] = []
    for name, task, seed, method in dag.cells:
        ref = dag.result_nodes[name, task, seed].spec.ref
        made = dag.fit_nodes[name, task, seed].spec.ref
        scored = dag.score_nodes.get((name, task, seed))
        fitted, loss = None, None
        if isinstance(method, HeadMethod | LayersMethod):
            fitted, loss = dag.artifacts.open(made), dag.experiment.loss_of(method, task)
        cells.append(
            Cell(
                method=name,
                task=task,
                seed=seed,
                role=_role(dag, method, task),
                folder=dag.artifacts.open(ref),
                history=None if fitted is None else fitted / "history.parquet",
                key=str(ref),
                loss=loss,
                category=task_kind(dag.experiment.tasks[task]),
                costs=Costs(
                    fit_seconds=_seconds(dag, made),
                    score_seconds=None if scored is None else _seconds(dag, scored.spec.ref),
                    n_pooling_parameters=_n_pooling_parameters(fitted),
                ),
            )
        )
    return [*cells, *_evaluation_cells(dag)]


def _evaluation_cells(dag: "Dag") -> list[Cell]:
    cells: list[Cell] = []
    for cell in evaluation_cells(dag.experiment):
        ref = dag.evaluation_nodes[cell.method, cell.task, cell.seed].spec.ref
        cells.append(
            Cell(
                method=cell.method,
                task=cell.task,
                seed=cell.seed,
                role=_role(dag, dag.experiment.methods[cell.method], cell.task),
                folder=dag.artifacts.open(ref),
                history=None,
                key=str(ref),
                category=dag.evaluation_facts[cell.config].category,
                costs=Costs(score_seconds=_seconds(dag, ref)),
            )
        )
    return cells


def _role(dag: "Dag", method: MethodConfig, task: str) -> Role:
    """A control is given nothing to learn the task from, a baseline no features."""
    if isinstance(method, HeadMethod | LinearMethod):
        return "control" if method.labels == "shuffled" else "method"
    if isinstance(method, LengthMethod | BagOfWordsMethod):
        return method.role_on(dag.experiment.tasks[task])
    return "method"


def roles(dag: "Dag") -> list[list[str]]:
    """Method, task and role of each result of the grid: the experiment may say what a method is, and no key
    of what the method computes knows of it."""
    found = {(name, task): _role(dag, method, task) for name, task, _, method in dag.cells}
    return [[name, task, role] for (name, task), role in found.items()]


def _seconds(dag: "Dag", ref: ArtifactRef) -> float | None:
    """Wall time in which an artifact was made, as its manifest has it."""
    if not dag.artifacts.is_done(ref):
        return None
    return dag.artifacts.manifest(ref).provenance.get("seconds")


def _n_pooling_parameters(fitted: Path | None) -> int | None:
    """As the file of a head has it; other kinds of fit have none."""
    if fitted is None or not (fitted / "head.json").exists():
        return None
    return read_json(fitted / "head.json").get("n_pooling_parameters")


def pretraining_runs(dag: "Dag") -> list[PretrainingRun]:
    """Every pretraining, and where its history lies."""
    runs: list[PretrainingRun] = []
    for name, node in dag.pretrain_nodes.items():
        pretraining = dag.experiment.pretrainings[name]
        layers = [array.rpartition("/")[2] for array in pretraining.latents.arrays(dag.sizes)]
        history = dag.artifacts.open(node.spec.ref) / "history.parquet"
        runs.append(PretrainingRun(name, pretraining.task, history, tuple(layers)))
    return runs


def extractions(dag: "Dag") -> list[Extraction]:
    """What every run of the backbone took, as far as it was recorded."""
    found: list[Extraction] = []
    for node in dag.extract_nodes:
        ref = node.spec.ref
        if (seconds := _seconds(dag, ref)) is not None:
            summary = dag.artifacts.manifest(ref).summary
            found.append(Extraction(node.label, summary["n_tokens_computed"], seconds))
    return found


def layer_curves(dag: "Dag") -> pa.Table | None:
    """Scores by layer of every probe of that kind; None without one."""
    parts: list[pa.Table] = []
    for (name, curve, task), node in dag.probe_nodes.items():
        if dag.experiment.probes[name].kind != "layers":
            continue
        found = LayerScores.load(dag.artifacts.open(node.spec.ref)).table
        n = found.num_rows
        tasks = [f"{task} · {score}" for score in found.column("score").to_pylist()]
        columns = [pa.array([curve] * n), pa.array(tasks), *map(found.column, ("layer", "value"))]
        parts.append(pa.Table.from_arrays(columns, schema=LAYER_CURVES))
    return pa.concat_tables(parts) if parts else None


def probe_curves(dag: "Dag") -> pa.Table | None:
    """What all other probes found; None without one."""
    rows: list[dict[str, Any]] = []
    for (name, curve, task), node in dag.probe_nodes.items():
        if (kind := dag.experiment.probes[name].kind) != "layers":
            found = ProbeCurves.load(dag.artifacts.open(node.spec.ref))
            fixed = {"probe": name, "kind": kind, "axis": found.axis, "method": curve, "task": task}
            rows += [{**fixed, **asdict(point)} for point in found.points]
    columns = {column: [row[column] for row in rows] for column in PROBE_CURVES.names}
    return pa.table(columns, schema=PROBE_CURVES) if rows else None


def text_tokens(dag: "Dag", digests: Sequence[str]) -> dict[str, list[Token]]:
    """Tokens of texts under the experiment's own recipe, as its tokenizer writes them."""
    if DEFAULT_RECIPE not in dag.stores or not digests:
        return {}
    return _tokens(dag, DEFAULT_RECIPE, digests, "span")


def _tokens(
    dag: "Dag", recipe: str, digests: Sequence[str], which: Literal["span", "all"]
) -> dict[str, list[Token]]:
    (store,), (target,) = dag.open_stores(recipe), dag.stores[recipe].targets
    budget = dag.experiment.runtime.memory_bytes
    wanted = list(digests)
    reader = open_reader(
        store, TOKEN_IDS.name, wanted, budget_bytes=budget, precision="stored", tokens=which
    )
    special, found = set(target.tokenizer.all_special_ids), dict[str, list[Token]]()
    for texts, rows in reader.in_order(256):
        for text, ids in zip(texts.tolist(), rows, strict=True):
            known = ids.reshape(-1).tolist()
            names = target.tokenizer.convert_ids_to_tokens([max(i, 0) for i in known])
            found[wanted[text]] = [
                Token(_PLACEHOLDERS.get(i, name), is_special=i < 0 or i in special)
                for i, name in zip(known, names, strict=True)
            ]
    return found


def attention_inputs(dag: "Dag") -> tuple[str, ...]:
    """Keys of the attention rows that a report may show."""
    found = _attention_recipe(dag)
    return () if found is None else dag.stores[found[0]].inputs(found[1])


def attention_rows(dag: "Dag") -> AttentionRows | None:
    """The attention rows of the first recipe that has some, read when they are asked for."""
    if (found := _attention_recipe(dag)) is None:
        return None
    recipe, arrays = found
    by_block = {int(array.rpartition("/")[2]): array for array in arrays}

    def read(digests: Sequence[str], blocks: Sequence[int]) -> dict[str, TextAttention]:
        stored = set(dag.unique_texts(dag.stores[recipe].tasks)[1])
        wanted = [digest for digest in digests if digest in stored]
        (store,), budget = dag.open_stores(recipe), dag.experiment.runtime.memory_bytes
        rows: dict[str, dict[int, NDArray[Any]]] = {digest: {} for digest in wanted}
        for block in blocks:
            reader = open_reader(store, by_block[block], wanted, budget_bytes=budget, tokens="all")
            for texts, features in reader.in_order(256):
                for text, row in zip(texts.tolist(), features, strict=True):
                    rows[wanted[text]][block] = row.copy()
        tokens = _tokens(dag, recipe, wanted, "all") if wanted else {}
        return {digest: TextAttention(tokens[digest], rows[digest]) for digest in wanted}

    (target,) = dag.stores[recipe].targets
    name = target.recipe.kind if recipe == DEFAULT_RECIPE else recipe
    return AttentionRows(name, tuple(sorted(by_block)), read)


def _attention_recipe(dag: "Dag") -> tuple[str, tuple[str, ...]] | None:
    for recipe, stores in dag.stores.items():
        arrays = tuple(a for a in stores.targets[0].arrays if a.startswith("attention_rows/"))
        if arrays and len(stores.targets) == 1 and stores.tasks:
            return recipe, arrays
    return None


def report_provenance(dag: "Dag") -> dict[str, str]:
    """What made the numbers, for people."""
    first = next(iter(dag.stores))
    target, store = dag.stores[first].targets[0], dag.open_stores(first)[0]
    receipt = store.checked_receipt(store.segments()[0], TOKEN_IDS.name)
    return {
        "backbone": f"{target.files.source} (weights sha256 {target.files.weights_digest})",
        "tokenizer": f"sha256 {target.files.tokenizer_digest}",
        **{
            "recipe" if name == DEFAULT_RECIPE else f"recipe {name}": "; ".join(
                str(recipe_identity(t.recipe)) for t in stores.targets
            )
            for name, stores in dag.stores.items()
        },
        "feature store": ", ".join(
            t.identity.store_id for s in dag.stores.values() for t in s.targets
        ),
        **{f"extracted with {k}": v for k, v in receipt.provenance.items()},
    }
