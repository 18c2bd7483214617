"""The experiment files of HTP's tables: they parse, plan, have the paper's rows, and share what they read."""

import re
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.plan import make_plan
from permafrost.flows.preview import Preview
from permafrost.storage.durable import read_json, write_json
from permafrost.storage.errors import InputError
from tests.flows.kinds_in_keys import unkeyed_kinds
from tests.short import short
from tests.stages.extraction.tiny_models import WORDS, save_model
from tests.stages.mteb_evaluation.small_tasks import write_rows, write_task

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers" / "htp"
SAME, NEVER = "mean, same block", "HTP, not rewired"
RETRIEVAL = {"mean", "last", "Echo", "TP + PromptEOL", "TP mean", "HTP"}
LONG = {*RETRIEVAL, "PromptEOL", "HTP, K 2", "HTP, K 12"} - {"last"}
GENERAL = {"mean", "Echo", "PromptEOL", "TP", "HTP"}
PARTS = {"HTP", "local only", "global only", "TP mean", SAME}
READOUTS = {
    *("HTP", "HTP without early readout", "HTP last", "HTP last without early readout"),
    *("mean", "mean with early readout", "last", "last with early readout"),
}
LENGTHS = ("mean", "Echo", "PromptEOL", "TP + PromptEOL", "TP mean", "HTP")
CUT = {
    *("mean", "Echo", "first copy unseen", "later tokens unseen", "earlier tokens unseen"),
    "second copy unseen",
}
SIZES = {"TP mean", *(f"HTP, K {k}" for k in (1, 2, 4, 8, 12, 20, 32, 64))}
EXITS = (3, 7, 11, 16, 21, 26, 31)
CHOSEN = "exit chosen on dev"
NOT = "not rewired"
ROWS = {
    "table1": {*RETRIEVAL, SAME, NEVER},
    "table2": {*LONG, SAME},
    "table3": {*GENERAL, SAME},
    "table4": {*PARTS, "HTP, placeholders in the mean"},
    "table5": READOUTS,
    "table6": {
        *(f"rewired to {n}" for n in (2, 3, 4, 5)),
        *(f"read at {n}" for n in (1, 2, 3, 4, 6, "last")),
    }
    - {"read at last"}
    | {"read last", CHOSEN},
    "table7": {f"rewired {a} to {b}" for a, b in ((1, 2), (2, 3), (4, 5))}
    | {f"rewired {a} to 5" for a in (1, 2, 3)}
    | {NOT},
    "table16": {*SIZES, SAME},
    "figure1": {"mean", "last", "PromptEOL"},
    "figure2": CUT,
    "figure3": {"last", "mean"},
    "theory": {"last", "mean"},
    "figure5": {f"{n}, {k}" for n in (*LENGTHS, SAME) for k in (64, 128, 256, 512)},
    "figure8": {"a sentence", "N tokens", "8 tokens"},
    "paper/table1": RETRIEVAL,
    "paper/table2": LONG,
    "paper/table2_8192": LONG,
    "paper/table3": GENERAL,
    "paper/table4": PARTS,
    "paper/table5": READOUTS,
    "paper/table6": {f"{how} {n}" for how in ("rewired to", "read at") for n in EXITS}
    | {"read last", CHOSEN},
    "paper/table7": {f"rewired {a} to {b}" for a, b in ((1, 7), (11, 17), (25, 31))}
    | {"rewired 1 to 31", "rewired 11 to 31", NOT},
    "paper/table16": SIZES,
    "paper/table16_long": SIZES,
    "paper/figure2": CUT,
    "paper/figure3": {"last", "mean"},
    "paper/theory": {"last", "mean"},
    "paper/figure5": {f"{n}, {512 << k}" for n in LENGTHS for k in range(6)},
    "paper/figure5_gemma2": {
        f"{n}, {512 << k}" for n in LENGTHS for k in range(4 if n == "Echo" else 5)
    },
    "paper/figure1": {"mean", "last", "PromptEOL"},
    "paper/figure8": {"a sentence", "N tokens"},
}
"""Rows by file; docs/papers/htp.md says which of the paper's are missing, and why."""
PAPER = sorted(name for name in ROWS if name.startswith("paper/"))
EACH = short(sorted(ROWS), "table1", "table6", "paper/table1")
BACKBONES = {"paper/figure5_gemma2": "gemma2"}
"""Those that are not Mistral."""
POSITIONS = {"mistral": 32_768, "gemma2": 8_192, "llama": 512}
RERANKED = ("AskUbuntuDupQuestions", "MindSmallReranking", "StackOverflowDupQuestions")
CLAIMED = {
    "table1": 3,
    "table2": 1,
    "table3": 4,
    "table4": 1,
    "table5": 4,
    "table6": 2,
    "table7": 1,
    "table16": 2,
    "figure1": 2,
    "figure2": 3,
    "figure3": 3,
    "figure5": 2,
    "figure8": 1,
    "theory": 8,
}
"""Claims of the small files."""


def roomy(family: str, folder: Path, n_layers: int) -> None:
    """A small model with the positions of the real one."""
    windows = ("sliding_attention", "full_attention")
    more: dict[str, Any] = {}
    if family == "gemma2":
        more["layer_types"] = [*windows * (n_layers // 2)]
    save_model(family, folder, num_hidden_layers=n_layers, **more)
    config = read_json(folder / "config.json")
    write_json(folder / "config.json", config | {"max_position_embeddings": POSITIONS[family]})


def of_kind(task: str) -> str:
    """The kind of a task of mteb, by its name."""
    if task in RERANKED:
        return "reranking"
    if task.startswith("STS"):
        return "sts"
    ends = ("Classification", "Clustering", "ClusteringP2P", "ClusteringS2S")
    found = [end for end in ends if task.endswith(end)]
    return found[0].rstrip("PS2").lower() if found else "retrieval"


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models of the same depth, and made-up data."""
    folder = tmp_path_factory.mktemp("htp")
    roomy("llama", folder / "mixed6m-gqa", 6)
    roomy("mistral", folder / "mistral", 32)
    roomy("gemma2", folder / "gemma2", 42)
    for kind, names in {
        "retrieval": ("cranfield", "scifact", "nfcorpus"),
        "sts": ("sts12", "sts13"),
        "classification": ("banking77", "emotion"),
    }.items():
        made = write_task(folder / "made", kind)
        for n, name in enumerate(names):
            shutil.copytree(made, folder / name)
            file = folder / name / ("queries.parquet" if kind == "retrieval" else "test.parquet")
            rows = pq.read_table(file)
            # So that two tasks differ.
            pq.write_table(rows.slice(0, rows.num_rows - n), file)
            if kind == "retrieval":
                judged = pq.read_table(folder / name / "qrels_test.parquet")
                for split in ("train", "dev"):
                    pq.write_table(judged.slice(2), folder / name / f"qrels_{split}.parquet")
    pairs = [
        {"sentence1": f"{WORDS[i % 20]} {i}", "sentence2": f"the {i}", "score": float(i % 6)}
        for i in range(120)
    ]
    write_rows(folder / "stsb" / "test.parquet", pairs)
    titles = [{"title": f"the {WORDS[i]}", "label_name": "ab"[i % 2]} for i in range(12)]
    write_rows(folder / "twentynewsgroups_titles" / "all.parquet", titles)
    candidates = [
        {
            "qid": i // 3,
            "question": WORDS[i // 3],
            "sentence": WORDS[3 + i],
            "label": int(i % 3 == 0),
        }
        for i in range(12)
    ]
    write_rows(folder / "wikiqa" / "test.parquet", candidates)
    write_rows(folder / "imdb" / "test.parquet", [{"text": "It was cold. " * 12}])
    meetings = [{"meeting_id": m, "text": f"We met in {m}. It was cold."} for m in "abc"]
    write_rows(folder / "qmsum" / "meetings.parquet", meetings)
    asked = [
        {
            "query_id": str(i),
            "meeting_id": "abc"[i % 3],
            "query": f"what of {i}",
            "answer": f"{i} .",
        }
        for i in range(6)
    ]
    write_rows(folder / "qmsum" / "queries.parquet", asked)
    return folder


@pytest.fixture(autouse=True)
def environment(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERMAFROST_DATA", str(stand_ins))
    monkeypatch.setenv("PERMAFROST_MODELS", str(stand_ins))


def stand_in(folder: Path, task: str) -> str:
    """Made-up data of a task's kind, unlike those of another."""
    kind, path = of_kind(task), folder / "tasks" / task
    if not path.exists():
        for file in write_task(path, kind).glob("*.parquet"):
            rows: list[dict[str, Any]] = pq.read_table(file).to_pylist()
            for column in {"sentence1", "text", "document"} & {*rows[0]}:
                rows[0][column] += f" {task}"
            write_rows(file, rows)
    return f"{{kind: local, type: {kind}, path: '{path / kind}'}}"


def with_the_papers_tasks(name: str, folder: Path) -> list[str]:
    """What puts a small model in the place of a paper's."""
    if not name.startswith("paper/"):
        return []
    model = folder / BACKBONES.get(name, "mistral")
    small = [f"backbone.source={model}", "backbone.dtype=float32"]
    if name == "paper/figure1":
        task = "{kind: similarity, text: sentence1, text_pair: sentence2, label: score}"
        files = f"{{test: '{folder / 'stsb' / 'test.parquet'}'}}"
        small += [f"x-pairs={{kind: files, files: {files}, task: {task}}}"]
    return small


def small(name: str, folder: Path) -> list[str]:
    """The same, and small tasks in the place of mteb's, with their names."""
    found = with_the_papers_tasks(name, folder)
    for part, evaluation in load_experiment(FOLDER / f"{name}.yaml").evaluations.items():
        tasks = {
            t: stand_in(folder, t) for t, c in evaluation.all_tasks.items() if c.kind == "mteb"
        }
        if tasks:
            named = ", ".join(f"{task}: {local}" for task, local in tasks.items())
            found += [f"evaluations.{part}.suites=[]", f"evaluations.{part}.tasks={{{named}}}"]
    return found


@cache
def built(name: str, folder: Path) -> ExperimentGraph:
    return build_graph(load_experiment(FOLDER / f"{name}.yaml", small(name, folder)))


def check_rows(name: str, nodes: ExperimentGraph) -> None:
    assert {*nodes.experiment.methods} == ROWS[name]
    cells = nodes.evaluations or nodes.scores
    tasks = {task for _, task, _ in cells}
    assert {*nodes.choices} == ({CHOSEN} if name.endswith("table6") else set())
    assert {(m, t) for m, t, _ in cells} == {(m, t) for m in ROWS[name] for t in tasks}
    # No row is another by another name.
    assert len({str(node.ref) for node in cells.values()}) == len(cells)


@pytest.mark.parametrize("name", EACH)
def test_a_file_plans_and_has_the_papers_rows(name: str, stand_ins: Path, tmp_path: Path) -> None:
    nodes = built(name, stand_ins)
    check_rows(name, nodes)
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, Preview(nodes.graph, tmp_path / "home", nodes.experiment.runtime))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert plan.n_tokens > 0
    assert not plan.hub_tasks
    assert not (tmp_path / "home").exists()


@pytest.mark.deep
@pytest.mark.parametrize("name", PAPER)
def test_a_file_of_the_papers_size_plans_with_tasks_of_mteb(
    name: str, stand_ins: Path, tmp_path: Path
) -> None:
    path, changes = FOLDER / f"{name}.yaml", with_the_papers_tasks(name, stand_ins)
    nodes = build_graph(load_experiment(path, changes))
    check_rows(name, nodes)
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, Preview(nodes.graph, tmp_path / "home", nodes.experiment.runtime))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    evaluations = load_experiment(path).evaluations.values()
    of_mteb = {t for e in evaluations for t, c in e.all_tasks.items() if c.kind == "mteb"}
    assert {*plan.hub_tasks} == of_mteb


@pytest.mark.parametrize("name", EACH)
def test_what_a_claim_names_is_in_the_file(name: str, stand_ins: Path) -> None:
    nodes = built(name, stand_ins)
    cells = {(method, task) for method, task, _ in nodes.evaluations or nodes.scores}
    claims = nodes.experiment.report.claims
    assert claims
    for claim in claims:
        if claim.methods:
            assert {*claim.methods} <= ROWS[name], claim.says
        wanted = {(method, task) for method in claim.methods for task in claim.tasks}
        assert wanted <= cells, claim.says
        for probe, curve in claim.curves:
            assert curve in nodes.experiment.probes[probe].model_dump()["methods"], claim.says


def said(claim: Any) -> tuple[str, float | None, str | None]:
    """A claim's words without what stands for what here, its gap, and over what it is."""
    words = re.sub(r" \(here [^)]*\)", "", claim.says)
    return words, getattr(claim, "gap", None), getattr(claim, "over", None)


@pytest.mark.parametrize("name", sorted(CLAIMED))
def test_what_a_small_file_claims_its_paper_size_claims_too(name: str) -> None:
    """So that a run of either is judged alike: with the same words and gap, and of the same rows unless they
    stand for others here. Tasks differ."""
    here = load_experiment(FOLDER / f"{name}.yaml").report.claims
    assert len(here) == CLAIMED[name]
    larger = [
        load_experiment(path)
        for path in sorted((FOLDER / "paper").glob("*.yaml"))
        if path.stem.split("_")[0] == name and path.stem != "table2_8192"
    ]
    assert larger
    there = [(one, claim) for one in larger for claim in one.report.claims]
    for claim in here:
        alike = [(one, other) for one, other in there if said(other) == said(claim)]
        assert alike, claim.says
        # A position, as the last block, is another one here.
        has_place = any(part.at for part in getattr(claim, "parts", ()))
        is_of_rows = " (here " not in claim.says and not has_place
        if is_of_rows and any({*claim.methods} <= {*one.methods} for one, _ in alike):
            same = claim.model_copy(update={"says": "", "tasks": ()})
            others = [o.model_copy(update={"says": "", "tasks": ()}) for _, o in alike]
            assert same in others, claim.says


def test_gaps_are_those_that_the_paper_prints() -> None:
    """Table 1: Qwen2 on SCIDOCS. Table 2: the smaller lead of the two backbones, at either length."""
    found: dict[str, set[float]] = {}
    for path in FOLDER.rglob("*.yaml"):
        for claim in load_experiment(path).report.claims:
            if (gap := said(claim)[1]) is not None:
                found.setdefault(said(claim)[0], set()).add(gap)
    assert found == {
        "table 1: HTP is above the vanilla mean in all 21 cells": {0.6},
        "table 2: HTP has the best mean at 512 tokens": {min(2.63, 1.53)},
        "table 2: HTP has the best mean at 8,192 tokens": {min(2.10, 1.18)},
    }


def test_gemma_has_no_room_for_the_longest_of_mistrals_lengths(stand_ins: Path) -> None:
    gemma, tokens = f"backbone.source={stand_ins / 'gemma2'}", 16_384
    changes = [*small("paper/figure5", stand_ins), gemma]
    with pytest.raises(InputError, match=f"{tokens}.*8192|8192.*{tokens}"):
        build_graph(load_experiment(FOLDER / "paper" / "figure5.yaml", changes))


@pytest.mark.deep
def test_table_2_at_8192_on_gemma_has_the_rows_of_its_figure_5(stand_ins: Path) -> None:
    gemma = f"backbone.source={stand_ins / 'gemma2'}"
    # Its window holds two copies of 4,096 tokens.
    changes = [*small("paper/table2_8192", stand_ins), gemma, "recipes.echo.max_length=8192"]
    nodes = build_graph(load_experiment(FOLDER / "paper" / "table2_8192.yaml", changes))
    figure = built("paper/figure5_gemma2", stand_ins).evaluations
    for task in ("LEMBQMSumRetrieval", "LEMBWikimQARetrieval"):
        for row in LENGTHS:
            longest = 4096 if row == "Echo" else 8192
            assert nodes.evaluations[row, task, 0].ref == figure[f"{row}, {longest}", task, 0].ref


def test_rows_that_files_share_are_computed_once(stand_ins: Path) -> None:
    same = {
        ("table4", "HTP", "SciFact"): [("table5", "HTP"), ("figure8", "a sentence")],
        ("table4", "HTP", "Cranfield"): [("table6", "rewired to 2"), ("table7", "rewired 1 to 2")],
        ("table2", "HTP, K 2", "QMSum by answer"): [("table16", "HTP, K 2")],
        # A recipe's own length is a store's, as the backbone's is.
        ("table2", "Echo", "QMSum by answer"): [("figure5", "Echo, 512")],
    }
    for (file, method, task), others in same.items():
        ref = built(file, stand_ins).evaluations[method, task, 0].ref
        for other, row in others:
            assert built(other, stand_ins).evaluations[row, task, 0].ref == ref, (other, row)


def test_blocks_of_tokens_are_of_each_document(stand_ins: Path) -> None:
    recipes = built("figure8", stand_ins).experiment.all_recipes
    assert recipes["tokens"].model_dump()["size"] == "per_sentence"


def test_settings_of_table_9_are_those_of_the_backbone(stand_ins: Path) -> None:
    sts = f"{{tasks: {{STS12: {{kind: local, type: sts, path: '{stand_ins / 'sts12'}'}}}}}}"
    small = [f"backbone={{source: '{stand_ins / 'mistral'}'}}", f"evaluations.BEIR={sts}"]
    nodes = build_graph(load_experiment(FOLDER / "paper" / "table1.yaml", small))
    (store,) = nodes.stores["htp"].targets
    assert store.recipe.model_dump()["stop"] == 7
    assert store.arrays == ("hidden/30",)
    small[0] = f"backbone={{source: '{stand_ins / 'mixed6m-gqa'}'}}"
    with pytest.raises(
        InputError, match="'htp' stands for the settings that table 9 of HTP prints"
    ):
        build_graph(load_experiment(FOLDER / "paper" / "table1.yaml", small))


def test_sweeps_are_curves(stand_ins: Path) -> None:
    def curves(name: str) -> dict[str, list[float]]:
        return {
            c["name"]: [*c["values"].values()]
            for c in built(name, stand_ins).report.config["curves"]
        }

    assert curves("table16") == {"HTP, K": [1, 2, 4, 8, 12, 20, 32, 64]}
    assert curves("table6") == {"rewired to": [2, 3, 4, 5], "read at": [1, 2, 3, 4, 5, 6]}
    assert curves("figure5") == {n: [64, 128, 256, 512] for n in (*LENGTHS, SAME)}
    assert curves("paper/table16_long") == curves("table16")
    gemma = {n: [512 << k for k in range(5)] for n in LENGTHS}
    assert curves("paper/figure5_gemma2") == gemma | {"Echo": [1024 << k for k in range(4)]}
    mistral = {n: [512 << k for k in range(6)] for n in LENGTHS}
    assert curves("paper/figure5") == mistral | {"Echo": [1024 << k for k in range(6)]}
    assert curves("table7") == {"rewired": [1, 2, 3, 4]}
    assert curves("table1") == {}


def test_every_file_is_here_and_on_the_papers_page() -> None:
    page = (ROOT / "docs" / "papers" / "htp.md").read_text(encoding="utf-8")
    found = {p.relative_to(FOLDER).with_suffix("").as_posix(): p for p in FOLDER.rglob("*.yaml")}
    assert {*found} == {*ROWS}
    for name, path in found.items():
        assert f"`{name}.yaml`" in page
        assert path.read_text(encoding="utf-8").startswith("# HTP, ")
    # Every item of the paper has an entry.
    items = [*(f"table {n}" for n in range(1, 19)), *(f"figure {n}" for n in range(1, 9)), "theory"]
    for item in items:
        assert f"\n| {item} |" in page, item
