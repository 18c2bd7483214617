"""Writing the report: everything that an experiment found, in one page and as data."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
from numpy.typing import NDArray

from permafrost.flows.context import BackboneSource, RunContext
from permafrost.flows.graph import Input, Node, import_path
from permafrost.flows.nodes.graphs import left_out_note
from permafrost.flows.nodes.reporting import (
    AttentionSource,
    CellEntry,
    CurveEntry,
    ExtractionEntry,
    PretrainingEntry,
    ProbeEntry,
    StoreEntry,
    TokenSource,
)
from permafrost.stages.corpus.corpus import Corpus
from permafrost.stages.extraction.recipes.inputs import OPENING, PLACEHOLDER
from permafrost.stages.metrics.attention_map import read_attention_map
from permafrost.stages.metrics.records import ELSEWHERE, HISTORY
from permafrost.stages.probes.curves import ProbeCurves
from permafrost.stages.probes.layer_probe import LayerScores
from permafrost.stages.report.attention import AttentionRows, TextAttention
from permafrost.stages.report.attention_maps import KeptMap
from permafrost.stages.report.cells import Cell, Costs
from permafrost.stages.report.config import ReportConfig
from permafrost.stages.report.costs import Extraction
from permafrost.stages.report.html import EXPERIMENT
from permafrost.stages.report.layers import LAYER_CURVES
from permafrost.stages.report.pretraining import ElsewhereRun, PretrainingRun
from permafrost.stages.report.probes import PROBE_CURVES
from permafrost.stages.report.report import write_report
from permafrost.stages.report.sweep import SweptCurve
from permafrost.stages.report.tokens import Token
from permafrost.storage.adapted_stores import adapted_store, known_ids
from permafrost.storage.artifacts import parse_ref
from permafrost.storage.durable import read_json
from permafrost.storage.features.layout import TOKEN_IDS
from permafrost.storage.features.record import has_record
from permafrost.storage.features.store import FeatureStore, store_folder
from permafrost.storage.readers import open_reader

_PLACEHOLDERS = {PLACEHOLDER: "<PST>", OPENING: "<B-PST>"}
_TEXTS_AT_A_TIME = 256


def write(node: Node, context: RunContext, folder: Path, gaps: Sequence[str] = ()) -> None:
    """Write the report of whatever is there into `folder`.

    Args:
        node: of the report.
        context: where its inputs lie.
        folder: made if it is not there.
        gaps: a sentence for each thing that is not there, shown above the results.

    Raises:
        InputError: not one result is there.
        CorruptDataError: an artifact is damaged.
    """
    config = node.config

    def there(ref: str) -> bool:
        return not gaps or context.artifacts.is_done(parse_ref(ref))

    cells = [CellEntry.model_validate(c) for c in config["cells"]]
    probes = [ProbeEntry.model_validate(p) for p in config["probes"]]
    pretrainings = [PretrainingEntry.model_validate(p) for p in config["pretrainings"]]
    tasks = {task: ref for task, ref in config["tasks"] if there(ref)}
    scored = {c.task for c in cells if there(c.result)}
    shown = ReportConfig.model_validate(config["report"])
    write_report(
        # Tasks without a result have no place.
        shown.model_copy(update={"x_axis": shown.x_axis.among(scored)}),
        [_cell(c, context) for c in cells if there(c.result)],
        {task: _corpus(ref, context) for task, ref in tasks.items()},
        partial(text_tokens, node, context),
        _provenance(node, context),
        folder,
        layer_curves=_layer_curves([p for p in probes if there(p.ref)], context),
        probes=_probe_curves([p for p in probes if there(p.ref)], context),
        probe_captions={p.kind: p.caption for p in probes},
        attention_maps=_attention_maps([p for p in probes if there(p.ref)], context),
        pretrainings=[_pretraining(p, context) for p in pretrainings if there(p.ref)],
        extractions=extractions(node, context),
        attention=attention_rows(node, context),
        swept=[_swept(CurveEntry.model_validate(c)) for c in config["curves"]],
        gaps=gaps,
        remarks=[*config["unread"], *_left_out(node, context)],
        named_metrics=config["metrics"],
    )


def report_cells(node: Node, context: RunContext) -> list[Cell]:
    """Every cell of the grid and every evaluation, and where the results lie."""
    return [_cell(CellEntry.model_validate(c), context) for c in node.config["cells"]]


def pretraining_runs(node: Node, context: RunContext) -> list[PretrainingRun]:
    """Every pretraining, and where its history lies."""
    entries = map(PretrainingEntry.model_validate, node.config["pretrainings"])
    return [_pretraining(entry, context) for entry in entries]


def _swept(entry: CurveEntry) -> SweptCurve:
    # As artifacts have it, names are in order, not numbers.
    return SweptCurve(entry.name, dict(sorted(entry.values.items(), key=lambda pair: pair[1])))


def _pretraining(entry: PretrainingEntry, context: RunContext) -> PretrainingRun:
    folder = _open(entry.ref, context)
    record = read_json(folder / "autoencoders.json")
    elsewhere = None
    if entry.measured_on is not None:
        left = tuple(record.get("unexplained_elsewhere", ()))
        elsewhere = ElsewhereRun(entry.measured_on, folder / ELSEWHERE, left)
    return PretrainingRun(
        entry.name,
        entry.task,
        folder / HISTORY,
        entry.layers,
        "each" if record["config"].get("joined") is None else "together",
        tuple(record.get("unexplained", ())),
        elsewhere,
    )


def _open(ref: str, context: RunContext) -> Path:
    return context.artifacts.open(parse_ref(ref))


def _corpus(ref: str, context: RunContext) -> Corpus:
    return context.corpus(Input(name="corpus", ref=ref, loader=import_path(Corpus.load)))


def _cell(entry: CellEntry, context: RunContext) -> Cell:
    fitted = None
    if entry.fit is not None and entry.loss is not None:
        fitted = _open(entry.fit, context)
    return Cell(
        method=entry.method,
        task=entry.task,
        seed=entry.seed,
        is_random=entry.is_random,
        role=entry.role,
        must_be_at_chance=entry.must_be_at_chance,
        folder=_open(entry.result, context),
        history=None if fitted is None else fitted / HISTORY,
        key=entry.result,
        loss=entry.loss,
        tunes_backbone=entry.tunes_backbone,
        category=entry.category,
        part=entry.part,
        fit=entry.fit,
        costs=Costs(
            fit_seconds=_fit_seconds(entry, context),
            score_seconds=None if entry.score is None else _seconds(entry.score, context),
            n_pooling_parameters=_n_pooling_parameters(fitted),
        ),
    )


def _fit_seconds(entry: CellEntry, context: RunContext) -> float | None:
    """Of a fit, or of all candidates together; None where one has no record."""
    refs = entry.candidates or (() if entry.fit is None else (entry.fit,))
    times = [_seconds(ref, context) for ref in refs]
    known = [seconds for seconds in times if seconds is not None]
    return sum(known) if times and len(known) == len(times) else None


def _seconds(ref: str, context: RunContext) -> float | None:
    """Wall time in which an artifact was made, without waits for other processes, as its manifest has it."""
    if not context.artifacts.is_done(parse_ref(ref)):
        return None
    return context.artifacts.manifest(parse_ref(ref)).provenance.get("seconds")


def _n_pooling_parameters(fitted: Path | None) -> int | None:
    """As the file of a head has it; other kinds of fit have none."""
    if fitted is None or not (fitted / "head.json").exists():
        return None
    return read_json(fitted / "head.json").get("n_pooling_parameters")


def extractions(node: Node, context: RunContext) -> list[Extraction]:
    """What every run of the backbone took, as far as it was recorded."""
    extractions_of: list[Extraction] = []
    for given in node.run_facts["extractions"]:
        entry = ExtractionEntry.model_validate(given)
        if (seconds := _seconds(entry.ref, context)) is not None:
            summary = context.artifacts.manifest(parse_ref(entry.ref)).summary
            counts = (summary[name] for name in ("n_texts", "n_truncated"))
            extractions_of.append(
                Extraction(entry.label, summary["n_tokens_computed"], seconds, *counts)
            )
    return extractions_of


def _left_out(node: Node, context: RunContext) -> tuple[str, ...]:
    refs = map(parse_ref, node.run_facts["descriptions"])
    done = [ref for ref in refs if context.artifacts.is_done(ref)]
    return left_out_note(context.artifacts.manifest(ref).summary for ref in done)


def _layer_curves(entries: Sequence[ProbeEntry], context: RunContext) -> pa.Table | None:
    """Scores by layer of every probe of that kind; None without one."""
    parts: list[pa.Table] = []
    for entry in entries:
        if entry.section != "layers":
            continue
        scores = LayerScores.load(_open(entry.ref, context)).table
        n = scores.num_rows
        tasks = [f"{entry.task} · {score}" for score in scores.column("score").to_pylist()]
        columns = [
            pa.array([entry.probe] * n),
            pa.array([entry.curve] * n),
            pa.array(tasks),
            *map(scores.column, ("layer", "value")),
        ]
        parts.append(pa.Table.from_arrays(columns, schema=LAYER_CURVES))
    return pa.concat_tables(parts) if parts else None


def _probe_curves(entries: Sequence[ProbeEntry], context: RunContext) -> pa.Table | None:
    """What all other probes found; None without one."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        if entry.section == "probes":
            curves = ProbeCurves.load(_open(entry.ref, context))
            fixed = {
                "probe": entry.probe,
                "kind": entry.kind,
                "axis": curves.axis,
                "method": entry.curve,
                "task": entry.task,
            }
            rows += [{**fixed, **asdict(point)} for point in curves.points]
    columns = {column: [row[column] for row in rows] for column in PROBE_CURVES.names}
    return pa.table(columns, schema=PROBE_CURVES) if rows else None


def _attention_maps(entries: Sequence[ProbeEntry], context: RunContext) -> list[KeptMap]:
    """Those that probes kept beside their curves."""
    found = [(entry, read_attention_map(_open(entry.ref, context))) for entry in entries]
    return [KeptMap(e.probe, e.curve, e.task, kept) for e, kept in found if kept is not None]


def text_tokens(node: Node, context: RunContext, digests: Sequence[str]) -> dict[str, list[Token]]:
    """Tokens of texts under the experiment's own recipe, as its tokenizer writes them, of those stored."""
    facts = node.run_facts["tokens"]
    if facts is None or not digests:
        return {}
    source = TokenSource.model_validate(facts)
    segments = _store(source, context).locate(digests).segment.tolist()
    stored = [digest for digest, segment in zip(digests, segments, strict=True) if segment >= 0]
    return _tokens(source, context, stored, "span") if stored else {}


def _store(source: TokenSource, context: RunContext) -> FeatureStore:
    root = store_folder(context.home, source.identity.store_id)
    return FeatureStore.open(root, expect=source.identity)


def _tokens(
    source: TokenSource,
    context: RunContext,
    digests: Sequence[str],
    which: Literal["span", "all"],
) -> dict[str, list[Token]]:
    tokenizer = context.target(source.identity, (), source.backbone).tokenizer
    wanted, budget = list(digests), context.runtime.memory_bytes
    reader = open_reader(
        _store(source, context),
        TOKEN_IDS.name,
        wanted,
        budget_bytes=budget,
        precision="stored",
        tokens=which,
    )
    special, tokens = set(tokenizer.all_special_ids), dict[str, list[Token]]()
    for texts, rows in reader.in_order(_TEXTS_AT_A_TIME):
        for text, ids in zip(texts.tolist(), rows, strict=True):
            known = ids.reshape(-1).tolist()
            names = tokenizer.convert_ids_to_tokens([max(i, 0) for i in known])
            tokens[wanted[text]] = [
                Token(_PLACEHOLDERS.get(i, name), is_special=i < 0 or i in special)
                for i, name in zip(known, names, strict=True)
            ]
    return tokens


def attention_rows(node: Node, context: RunContext) -> AttentionRows | None:
    """The attention rows of the first recipe that has some, read when they are asked for."""
    facts = node.run_facts["attention"]
    if facts is None:
        return None
    source = AttentionSource.model_validate(facts)
    by_block = {int(array.rpartition("/")[2]): array for array in source.arrays}
    read = partial(_read_attention, source, by_block, context)
    return AttentionRows(source.recipe, tuple(sorted(by_block)), read)


def _read_attention(
    source: AttentionSource,
    by_block: Mapping[int, str],
    context: RunContext,
    digests: Sequence[str],
    blocks: Sequence[int],
) -> dict[str, TextAttention]:
    stored = {d for ref in source.corpora for d in _corpus(ref, context).digests}
    wanted = [digest for digest in digests if digest in stored]
    store, budget = _store(source.tokens, context), context.runtime.memory_bytes
    rows: dict[str, dict[int, NDArray[Any]]] = {digest: {} for digest in wanted}
    for block in blocks:
        reader = open_reader(store, by_block[block], wanted, budget_bytes=budget, tokens="all")
        for texts, attention in reader.in_order(_TEXTS_AT_A_TIME):
            for text, row in zip(texts.tolist(), attention, strict=True):
                rows[wanted[text]][block] = row.copy()
    tokens = _tokens(source.tokens, context, wanted, "all") if wanted else {}
    return {digest: TextAttention(tokens[digest], rows[digest]) for digest in wanted}


def _provenance(node: Node, context: RunContext) -> dict[str, str]:
    """What made the numbers, for people."""
    stores = [StoreEntry.model_validate(s) for s in node.config["stores"]]
    source = BackboneSource.model_validate(node.run_facts["backbone"])
    named = [pair for s in stores for pair in zip(s.names, s.identities, strict=True)]
    adapted = [(s.recipe, adapted_store(context.artifacts, s.names[0])) for s in stores]
    first, ids = stores[0].identities[0], known_ids(context.artifacts, named)
    # That of an adapted backbone begins with the base's.
    base = first.weights_digest.partition(" ")[0]
    folders = [folder for i in ids if has_record(folder := store_folder(context.home, i))]
    made = _made(FeatureStore.open(folders[0])) if folders else {}
    return {
        EXPERIMENT: node.config["name"],
        "backbone": f"{source.source} (weights sha256 {base})",
        **{
            f"backbone of recipe {recipe}": f"{known.backbone} (weights sha256 "
            f"{known.identity.weights_digest})"
            for recipe, known in adapted
            if known is not None
        },
        "tokenizer": f"sha256 {first.tokenizer_digest}",
        **{
            "recipe" if s.recipe == "default" else f"recipe {s.recipe}": "; ".join(
                map(str, s.recipes)
            )
            for s in stores
        },
        "feature store": ", ".join(ids),
        **{f"extracted with {k}": v for k, v in made.items()},
    }


def _made(store: FeatureStore) -> Mapping[str, str]:
    """What the receipts of a store say of its making; nothing where another run has only begun it."""
    name = TOKEN_IDS.name
    done = next((s for s in store.segments() if name in store.committed(s)), None)
    return {} if done is None else store.checked_receipt(done, name).provenance
