"""What the report of an experiment is made from."""

from typing import TYPE_CHECKING

import pyarrow as pa

from flows.experiment import DEFAULT_RECIPE, EmbedMethod, HeadMethod, LayersMethod
from stages.extraction.recipes import OPENING, PLACEHOLDER, recipe_identity
from stages.layer_probe import LayerScores
from stages.report.layer_curves import LAYER_CURVES
from stages.report.tables import Cell
from storage.features.layout import TOKEN_IDS
from storage.readers import open_reader

if TYPE_CHECKING:
    from flows.dag import Dag

_PLACEHOLDERS = {PLACEHOLDER: "<PST>", OPENING: "<B-PST>"}


def report_cells(dag: "Dag") -> list[Cell]:
    """Every cell of the grid, and where its results lie."""
    cells: list[Cell] = []
    for name, task, seed, method in dag.cells:
        ref = dag.result_nodes[name, task, seed].spec.ref
        history, is_control = None, not isinstance(method, EmbedMethod | LayersMethod)
        if isinstance(method, HeadMethod):
            fit_ref = dag.fit_nodes[name, task, seed].spec.ref
            history = dag.artifacts.open(fit_ref) / "history.parquet"
            is_control = method.labels == "shuffled"
        cells.append(
            Cell(
                method=name,
                task=task,
                seed=seed,
                role="control" if is_control else "method",
                folder=dag.artifacts.open(ref),
                history=history,
                key=str(ref),
            )
        )
    return cells


def layer_curves(dag: "Dag") -> pa.Table | None:
    """Scores by layer of every probe; None without probes."""
    parts: list[pa.Table] = []
    for (curve, task), node in dag.probe_nodes.items():
        found = LayerScores.load(dag.artifacts.open(node.spec.ref)).table
        n = found.num_rows
        tasks = [f"{task} · {score}" for score in found.column("score").to_pylist()]
        columns = [pa.array([curve] * n), pa.array(tasks), *map(found.column, ("layer", "value"))]
        parts.append(pa.Table.from_arrays(columns, schema=LAYER_CURVES))
    return pa.concat_tables(parts) if parts else None


def token_strings(dag: "Dag", digest: str) -> list[str] | None:
    """Tokens of a text under the experiment's own recipe, as its tokenizer writes them."""
    if DEFAULT_RECIPE not in dag.stores:
        return None
    (store,), (target,) = dag.open_stores(), dag.stores[DEFAULT_RECIPE].targets
    reader = open_reader(store, TOKEN_IDS.name, [digest], budget_bytes=1 << 20, precision="stored")
    _, rows = next(reader.in_order(1))
    ids: list[int] = rows.data.reshape(-1).tolist()
    known = [i if i >= 0 else 0 for i in ids]
    names = target.tokenizer.convert_ids_to_tokens(known)
    return [_PLACEHOLDERS.get(i, name) for i, name in zip(ids, names, strict=True)]


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
