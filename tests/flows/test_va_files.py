"""The experiment files of Value Aggregation's tables: they parse, plan, and have the paper's rows."""

import json
from functools import cache
from pathlib import Path
from shutil import copy, copytree
from typing import Any

import pyarrow.parquet as pq
import pytest

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.plan import make_plan
from permafrost.flows.preview import Preview
from permafrost.stages.extraction.target import resolve_backbone
from permafrost.stages.mteb_evaluation.suites import suite
from tests.flows.kinds_in_keys import unkeyed_kinds
from tests.short import short
from tests.stages.extraction.tiny_models import WORDS, save_model
from tests.stages.mteb_evaluation.small_tasks import write_rows, write_task

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers" / "va"
TUNED = {"Finetune-VA", "Finetune-MP", "attention only"}
ROWS = {
    "figure4": {*TUNED, "VA untuned", "MP untuned", "shuffled pairs"},
    "paper/figure4": {*TUNED, "VA untuned"},
}
"""Rows by file, of methods that are trained on pairs."""

TABLE1 = {
    *("HS full", "HS half", "HS selected", "LT", "WMP"),
    *("PromptEOL", "MetaEOL", "PromptEOL + CP", "VA full", "VA half", "VA selected"),
}
PROMPTED = {f"{m} ({p})" for m in ("WVA", "AlignedWVA") for p in ("PromptEOL", "FutureEOL")}
GROUPED = {f"WVA ({p}), mean of a group" for p in ("PromptEOL", "FutureEOL")}
UNTUNED = {
    "table1": {*TABLE1, "Echo"},
    "table2": {*PROMPTED, *GROUPED, "WVA (LT)", "PromptEOL", "VA", "MetaEOL"},
    "table2_mha": {"WVA (PromptEOL)", "AlignedWVA (PromptEOL)", "VA", "PromptEOL"},
    "table3": {f"{m} {s}" for m in ("VA", "HS") for s in ("full", "half", "selected")},
    "table6": {"own pooling", "VA half"},
    "figure3": {f"{m} {k}" for m in ("VA", "HS") for k in range(1, 7)},
    "paper/tables1to4_llama2": {*TABLE1, "Echo", *PROMPTED, "WVA (LT)"},
    "paper/tables1to4_qwen3": {*TABLE1, *PROMPTED, *GROUPED, "WVA (LT)"},
    "paper/table6": {"own pooling", "VA half"},
    "paper/figure3_llama2": {f"VA {k}" for k in range(1, 33)},
    "paper/figure3_qwen3": {f"VA {k}" for k in range(1, 37)},
}
"""The paper's rows by file, of methods without training."""
CHOSEN = {
    "table1": {"VA selected", "HS selected"},
    "table3": {"VA selected", "HS selected"},
    "paper/figure3": {"VA selected by our rule"},
}
"""Rows whose layers an evaluation chooses, by file."""
SKIPPED = {f"{v}, first token skipped" for v in ("hidden states", "values")}
READ = {
    "last hidden state",
    *(f"values, {w}" for w in ("uniform", "weights of t", "weights of t + k")),
}
VECTORS = ("hidden states", "VA of the prefix")
NEXT = {*VECTORS, *(f"{v}, own softmax" for v in VECTORS), "own prediction", "frequencies"}
LENS = {*READ, *(f"{vector}, final norm" for vector in READ)}
PROBED = {
    "figure2": {"segments": {"hidden states", "values", *SKIPPED}},
    "figure5_6": {"next token": {*NEXT, "values"}},
    "figure8": {"later tokens": LENS},
    "paper/figure2_llama2": {"segments": {"hidden states", "values"}},
    "paper/figure2_qwen3": {"segments": {"hidden states", "values"}},
    "paper/figure5_6": {"next token": NEXT},
    "paper/figure8": {"later tokens": LENS},
}
"""Curves by file and probe."""
LARGE = {
    "table1": ("tables1to4_llama2",),
    "table2": ("tables1to4_qwen3",),
    "table2_mha": ("tables1to4_llama2",),
    "table3": ("tables1to4_llama2", "tables1to4_qwen3"),
    "figure3": ("figure3_llama2", "figure3_qwen3"),
    "figure2": ("figure2_llama2", "figure2_qwen3"),
    **{name: (name,) for name in ("figure4", "figure5_6", "figure8", "table6")},
}
"""The files under `paper/` that say what a small file says; those that its backbone stands for."""
SETS = {"llama2": (range(16, 33), range(20, 28)), "qwen3": (range(18, 37), (26, 27, 29, 30, 31))}
"""Half and selected layers by backbone, counted from 1 (4.1, 5.1)."""
FAMILIES = {"llama2": ("llama", 32), "qwen3": ("qwen3", 36)}
FOLDERS = {
    "stsb": "sts",
    "cranfield": "retrieval",
    "banking77": "classification",
    "emotion": "classification",
    "glue_mrpc": "pair_classification",
    "twentynewsgroups_titles": "clustering",
}
"""Local sets, and the kind of task that they hold."""


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models and made-up data."""
    folder = tmp_path_factory.mktemp("va")
    # Long enough for prompts in letters.
    save_model("llama", folder / "mixed6m-gqa", num_hidden_layers=6, max_position_embeddings=512)
    save_model("bert", folder / "minilm", num_hidden_layers=6, max_position_embeddings=512)
    for split in ("train", "dev", "test"):
        rows = [
            {
                "qid": i // 3,
                "question": f"{WORDS[2 + i // 3]} and {split}",
                "sentence": f"the {WORDS[4 + i]} {split}",
                "label": int(i % 3 == 0),
            }
            for i in range(12)
        ]
        (folder / "wikiqa").mkdir(exist_ok=True)
        write_rows(folder / "wikiqa" / f"{split}.parquet", rows)
    for name, kind in FOLDERS.items():
        write_task(folder, kind).rename(folder / name)
        if kind == "retrieval":
            copytree(folder / name, folder / "scifact")
            judged = pq.read_table(folder / "scifact" / "qrels_test.parquet")
            pq.write_table(judged.slice(1), folder / "scifact" / "qrels_train.parquet")
        if kind == "clustering":
            table = pq.read_table(folder / name / "test.parquet")
            pq.write_table(
                table.rename_columns(["title", "label_name"]), folder / name / "all.parquet"
            )
        elif kind != "retrieval":
            rows = pq.read_table(folder / name / "test.parquet")
            pq.write_table(rows.slice(1), folder / name / "dev.parquet")
    write_task(folder, "sts")
    long = [{"text": " ".join(WORDS[i % 7 :] * 8)} for i in range(24)]
    for name in ("imdb/train", "imdb/test", "qmsum/meetings"):
        rows = [{"text": f"{WORDS[i]} {name} {row['text']}"} for i, row in enumerate(long)]
        write_rows(folder / f"{name}.parquet", rows)
    (folder / "wikitext2").mkdir()
    for theirs, ours in {"train": "train", "valid": "test", "test": "test"}.items():
        copy(folder / "imdb" / f"{ours}.parquet", folder / "wikitext2" / f"{theirs}.parquet")
    (folder / "longbench_v2").mkdir()
    items = json.dumps([{"context": row["text"] + f" {i}"} for i, row in enumerate(long)])
    (folder / "longbench_v2" / "data.json").write_text(items)
    save_model("llama", folder / "llama-2-7b", num_hidden_layers=32, max_position_embeddings=512)
    save_model(
        "qwen3",
        folder / "qwen3-8b",
        num_hidden_layers=36,
        max_position_embeddings=512,
        layer_types=["full_attention"] * 36,
    )
    return folder


@pytest.fixture(autouse=True)
def environment(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERMAFROST_DATA", str(stand_ins))
    monkeypatch.setenv("PERMAFROST_MODELS", str(stand_ins))


def tuned(name: str, stand_ins: Path) -> ExperimentGraph:
    sts = f"{{tasks: {{STS: {{kind: local, type: sts, path: {stand_ins / 'sts'}}}}}}}"
    small = ["x-optim.warmup_steps=0"]
    if name == "figure4":
        small += [f"evaluations.by kind={sts}"]
    else:
        files = {s: str(stand_ins / "wikiqa" / f"{s}.parquet") for s in ("train", "dev", "test")}
        columns = "query_id: qid, query: question, document: sentence, negatives: candidates"
        small += [
            f"backbone={{source: {stand_ins / 'mixed6m-gqa'}, max_length: 40}}",
            f"tasks.pairs={{kind: reranking, files: {files}, {columns}}}",
            f"evaluations.va14={sts}",
            *(f"methods.{m}.layers=2-3" for m in ("Finetune-VA", "attention only")),
            *(f"methods.VA of {m}.layers=2-3" for m in ("Finetune-VA", "attention only")),
        ]
    return build_graph(load_experiment(FOLDER / f"{name}.yaml", small))


@cache
def untuned(name: str, stand_ins: Path) -> ExperimentGraph:
    small = ["backbone.max_length=400"]
    if name in ("table2_mha", "table6"):
        small += [f"backbone.source={stand_ins / 'minilm'}"]
    if name.startswith("paper/"):
        family, n_layers = FAMILIES.get(name.rpartition("_")[2], ("qwen3", 6))
        source = stand_ins / f"{family}{n_layers}"
        save_model(
            family,
            source,
            num_hidden_layers=n_layers,
            max_position_embeddings=512,
            layer_types=["full_attention"] * n_layers,
        )
        if "figure3" in name:
            path = stand_ins / "cranfield"
            search = f"{{kind: local, type: retrieval, path: {path}}}"
            chosen = "methods: [VA selected by our rule]"
            small.append(f"evaluations.va14={{tasks: {{search: {search}}}, {chosen}}}")
        evaluation = "choosing layers" if "figure3" in name else "va14"
        sts = f"{{tasks: {{STS: {{kind: local, type: sts, path: {stand_ins / 'sts'}}}}}}}"
        small += [f"backbone.source={source}", f"evaluations.{evaluation}={sts}"]
    return build_graph(load_experiment(FOLDER / f"{name}.yaml", small))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ROWS)
def test_a_file_plans_and_has_the_papers_rows(name: str, stand_ins: Path, tmp_path: Path) -> None:
    nodes = tuned(name, stand_ins)
    experiment = nodes.experiment
    assert {m for m in experiment.methods if experiment.tasks_of(m)} == ROWS[name]
    fits = {(method, seed) for method, _, seed in nodes.fits}
    n_seeds = len(experiment.seeds)
    assert len(fits) == sum(1 if "untuned" in m else n_seeds for m in ROWS[name])
    assert {method for method, _, _ in nodes.evaluations} == {*experiment.methods} - ROWS[name]
    preview = Preview(nodes.graph, tmp_path / "home", experiment.runtime)
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, preview)
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert plan.n_tokens > 0
    # Of pairs, which are computed in every pass, nothing that takes room is stored.
    for (_, task, _), node in nodes.extractions.items():
        assert task not in experiment.tasks or node.config["arrays"] == ["pooled/hidden_last/0"]
    assert not (tmp_path / "home").exists()


@pytest.mark.deep
@pytest.mark.parametrize("name", UNTUNED)
def test_a_file_without_training_plans_and_has_the_papers_rows(
    name: str, stand_ins: Path, tmp_path: Path
) -> None:
    nodes = untuned(name, stand_ins)
    experiment = nodes.experiment
    assert UNTUNED[name] <= {*experiment.methods}
    cells = {(method, task) for method, task, _ in nodes.evaluations}
    choosing = experiment.evaluations.get("choosing layers")
    reported = [e for e in experiment.evaluations.values() if e != choosing]
    chosen = {*nodes.choices}
    assert chosen == CHOSEN.get(name.partition("_")[0], set())
    # Rows that are chosen are not scored on what they are chosen on.
    expected = {
        (m, t) for e in reported for m in e.methods or experiment.methods for t in e.all_tasks
    }
    if choosing is not None and choosing.methods is None:
        expected |= {(m, t) for m in {*experiment.methods} - chosen for t in choosing.all_tasks}
    assert cells == expected
    assert not nodes.fits or {method for method, _, _ in nodes.fits} <= {*experiment.methods}
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, Preview(nodes.graph, tmp_path / "home", experiment.runtime))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert plan.n_tokens > 0
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("name", [name for name in UNTUNED if name.startswith("paper/")])
def test_a_file_at_the_papers_size_has_the_papers_tasks(name: str) -> None:
    experiment = load_experiment(FOLDER / f"{name}.yaml")
    evaluation, *others = reversed(experiment.evaluations.values())
    assert all(e.suites == ("va14",) for e in others)
    assert experiment.tasks == {}
    if "figure3" not in name:
        assert evaluation.suites == ("va14",)
        assert not evaluation.tasks
        return
    # 4.2: none of the splits that the 14 tasks are scored on.
    assert len(evaluation.tasks) == 10
    from_hub = {name for name, task in evaluation.tasks.items() if task.kind == "mteb"}
    assert not from_hub & {*suite("va14")}


@pytest.mark.parametrize("name", short(PROBED, "figure5_6"))
def test_a_file_of_probes_plans_and_has_the_papers_curves(
    name: str, stand_ins: Path, tmp_path: Path
) -> None:
    small = ["tasks.reviews.sample.n_rows={train: 16, test: 8}"] if name == "figure5_6" else []
    if name.startswith("paper/"):
        model = "qwen3-8b" if "qwen3" in name else "llama-2-7b"
        small += [f"backbone.source={stand_ins / model}", "backbone.max_length=400"]
    nodes = build_graph(load_experiment(FOLDER / f"{name}.yaml", small))
    experiment = nodes.experiment
    curves = {n: {*probe.methods} for n, probe in experiment.probes.items()}
    assert curves == PROBED[name]
    expected = {
        (n, c, t) for n, probe in experiment.probes.items() for c in curves[n] for t in probe.tasks
    }
    assert {*nodes.probes} == expected
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, Preview(nodes.graph, tmp_path / "home", experiment.runtime))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert not (tmp_path / "home").exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("backbone", SETS)
def test_layers_are_the_papers_counted_from_one(backbone: str, stand_ins: Path) -> None:
    nodes = untuned(f"paper/tables1to4_{backbone}", stand_ins)
    experiment = nodes.experiment
    stored = experiment.backbone, experiment.store_dtype, experiment.codec
    sizes = resolve_backbone(*stored).sizes
    half, selected = SETS[backbone]
    shifted = [k + 1 for k in selected]
    arrays = {
        "VA half": [f"values/{k}" for k in half],
        "HS half": [f"hidden/{k}" for k in half],
        "VA selected": [f"values/{k}" for k in selected],
        "HS selected": [f"hidden/{k}" for k in selected],
        "VA selected (from 0)": [f"values/{k}" for k in shifted],
    }
    for name, expected in arrays.items():
        (read,) = nodes.experiment.methods[name].reads(sizes).values()
        assert list(read) == expected


@pytest.mark.deep
def test_targets_differ_as_in_the_paper_and_nothing_else(stand_ins: Path) -> None:
    for name in ROWS:
        methods = tuned(name, stand_ins).experiment.methods
        plain = {m: methods[m].model_dump(mode="json") for m in TUNED}
        mean, va, attention = (plain[m] for m in ("Finetune-MP", "Finetune-VA", "attention only"))
        assert mean | {"pooling": "va", "layers": va["layers"]} == va
        assert va["train"]["targets"] == "without_keys"
        assert attention["train"] == va["train"] | {"targets": "attention_and_norms"}
        assert attention | {"train": va["train"]} == va


def claimed(file: str) -> list[tuple[set[str], dict[str, Any]]]:
    """What a file claims: names of rows and curves, and all but the depth, the tasks and where it stands."""
    experiment = load_experiment(FOLDER / f"{file}.yaml")
    found: list[tuple[set[str], dict[str, Any]]] = []
    for claim in experiment.report.claims:
        plain = claim.model_dump()
        says = plain.pop("says")
        del plain["tasks"]
        # Positions are those of a backbone; the depth is what is said.
        places = plain.pop("at", ())
        sides = [plain[s] for s in ("higher", "lower") if isinstance(plain.get(s), dict)]
        ends = [side["at"] for side in sides if (side["at"] or "final") not in ("1", "final")]
        for side in sides:
            side["at"] = "deepest" if side["at"] in ends else side["at"]
        if plain["kind"] == "same_best":
            plain = {"kind": "same_best", "of": "every block"}
        plain |= {"is deep": bool(places), "says": says.partition(": ")[2]}
        found.append(({*claim.methods, *(curve for _, curve in claim.curves)}, plain))
    return found


def rows_of(file: str) -> set[str]:
    experiment = load_experiment(FOLDER / f"{file}.yaml")
    return {*experiment.methods, *(c for p in experiment.probes.values() for c in p.methods)}


@pytest.mark.parametrize("name", LARGE)
def test_what_a_small_file_claims_its_paper_size_claims_too(name: str) -> None:
    """As far as it has the rows; so that a run of either is judged alike."""
    mine = claimed(name)
    assert mine
    for large in (f"paper/{other}" for other in LARGE[name]):
        theirs = claimed(large)
        found = [claim for names, claim in mine if names <= rows_of(large)]
        assert found
        assert [c for c in found if c not in [claim for _, claim in theirs]] == [], large
        if f"paper/{name}" == large:
            rows = rows_of(name)
            assert len(found) == len([names for names, _ in theirs if names <= rows])


def test_every_file_claims_something() -> None:
    names = {*ROWS, *UNTUNED, *PROBED}
    assert {
        name for name in names if not load_experiment(FOLDER / f"{name}.yaml").report.claims
    } == set()
    assert {f"paper/{other}" for others in LARGE.values() for other in others} | {*LARGE} == names


def test_positions_of_claims_are_of_the_deep_half() -> None:
    depths = {"figure2": 6, "paper/figure2_llama2": 32, "paper/figure2_qwen3": 36}
    for name, n_layers in depths.items():
        claims = load_experiment(FOLDER / f"{name}.yaml").report.claims
        half = tuple(str(k) for k in range(n_layers // 2, n_layers + 1))
        *deep, rise = [claim.model_dump() for claim in claims]
        assert [claim["at"] for claim in deep] == [half] * 3
        assert (rise["higher"]["at"], rise["lower"]["at"]) == (str(n_layers), "1")


def test_claims_by_kind_name_the_papers_tasks_of_it() -> None:
    """LISTS.md: Sprint's pairs stand with classification; the printed means of table 6 agree."""
    experiment = load_experiment(FOLDER / "paper" / "figure4.yaml")
    tasks = {c.says: c.tasks for c in experiment.report.claims if c.kind == "higher" and c.tasks}
    counts = {"clustering": 3, "STS": 3, "classification": 3, "reranking": 2}
    by_kind = {kind: {*t} for kind in counts for says, t in tasks.items() if says.endswith(kind)}
    assert {kind: len(named) for kind, named in by_kind.items()} == counts
    assert "SprintDuplicateQuestions" in by_kind["classification"]
    retrieval = {*suite("va14")} - {task for named in by_kind.values() for task in named}
    assert retrieval == {"SciFact", "NFCorpus", "ArguAna"}
    means = {"clustering": 33.84, "STS": 84.78, "classification": 75.64, "reranking": 65.14}
    total = 52.32 * 3 + sum(means[kind] * n for kind, n in counts.items())
    assert total / 14 == pytest.approx(62.14, abs=0.01)


def test_gaps_of_grouped_queries_are_those_of_qwen3() -> None:
    """Table 2 prints AlignedWVA above WVA by +16.1 and +15.0 there, by +0.5 and +0.3 on Llama-2."""
    printed = {"PromptEOL": (16.1, 0.5), "FutureEOL": (15.0, 0.3)}
    for side, files in enumerate(
        (("table2", "paper/tables1to4_qwen3"), ("paper/tables1to4_llama2",))
    ):
        for file in files:
            claims = load_experiment(FOLDER / f"{file}.yaml").report.claims
            gaps = {
                c.higher: c.gap for c in claims if c.kind == "higher" and "AlignedWVA is" in c.says
            }
            assert gaps == {f"AlignedWVA ({p})": pair[side] for p, pair in printed.items()}


def test_every_file_is_here_and_on_the_papers_page() -> None:
    page = (ROOT / "docs" / "papers" / "va.md").read_text(encoding="utf-8")
    names = {*ROWS, *UNTUNED, *PROBED}
    for path in FOLDER.rglob("*.yaml"):
        name = path.relative_to(FOLDER).with_suffix("").as_posix()
        assert name in names
        assert f"`{name}.yaml`" in page
        assert path.read_text(encoding="utf-8").startswith("# Value Aggregation")
    assert len([*FOLDER.rglob("*.yaml")]) == len(names)
    for name in ("figure4", "tables1to4_llama2", "tables1to4_qwen3", "table6"):
        text = (FOLDER / "paper" / f"{name}.yaml").read_text(encoding="utf-8")
        assert "suites: [va14]" in text
    assert len(suite("va14")) == 14
