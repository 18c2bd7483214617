"""The experiment files of HTP's tables: they parse, plan, have the paper's rows, and share what they read."""

import shutil
from functools import cache
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment import load_experiment
from permafrost.flows.plan import make_plan
from permafrost.flows.preview import Preview
from permafrost.storage.durable import read_json, write_json
from permafrost.storage.errors import InputError
from tests.stages.extraction.tiny_models import WORDS, save_model
from tests.stages.mteb_evaluation.small_tasks import write_rows, write_task

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers" / "htp"
SAME, NEVER = "mean, same block", "HTP, not rewired (control)"
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
    "second copy unseen (control)",
}
SIZES = {"TP mean", *(f"HTP, K {k}" for k in (1, 2, 4, 8, 12, 20, 32, 64))}
EXITS = (3, 7, 11, 16, 21, 26, 31)
CHOSEN = "exit chosen on dev"
NOT = "not rewired (control)"
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
    "paper/table3": GENERAL,
    "paper/table4": PARTS,
    "paper/table5": READOUTS,
    "paper/table6": {f"{how} {n}" for how in ("rewired to", "read at") for n in EXITS}
    | {"read last", CHOSEN},
    "paper/table7": {f"rewired {a} to {b}" for a, b in ((1, 7), (11, 17), (25, 31))}
    | {"rewired 1 to 31", "rewired 11 to 31", NOT},
    "paper/table16": SIZES,
    "paper/figure2": CUT,
    "paper/figure3": {"last", "mean"},
    "paper/theory": {"last", "mean"},
    "paper/figure5": {f"{n}, {512 << k}" for n in LENGTHS for k in range(6)},
    "paper/figure1": {"mean", "last", "PromptEOL"},
    "paper/figure8": {"a sentence", "N tokens"},
}
"""Rows by file; docs/papers/htp.md says which of the paper's are missing, and why."""
QUICK = {"paper/figure1", *(name for name in ROWS if "/" not in name)}
"""Files without tasks of mteb, which is slow to import; `make test-deep` plans all."""


def roomy(family: str, folder: Path, n_layers: int) -> None:
    """A small model with the positions of the real one."""
    save_model(family, folder, num_hidden_layers=n_layers)
    config, n = read_json(folder / "config.json"), 32_768 if family == "mistral" else 512
    write_json(folder / "config.json", config | {"max_position_embeddings": n})


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models of the same depth, and made-up data."""
    folder = tmp_path_factory.mktemp("htp")
    roomy("llama", folder / "mixed6m-gqa", 6)
    roomy("mistral", folder / "mistral", 32)
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


@cache
def built(name: str, folder: Path) -> ExperimentGraph:
    small: list[str] = []
    if name.startswith("paper/"):
        small += [f"backbone.source={folder / 'mistral'}", "backbone.dtype=float32"]
    if name == "paper/figure1":
        task = "{kind: similarity, text: sentence1, text_pair: sentence2, label: score}"
        files = f"{{test: '{folder / 'stsb' / 'test.parquet'}'}}"
        small += [f"x-pairs={{kind: files, files: {files}, task: {task}}}"]
    return build_graph(load_experiment(FOLDER / f"{name}.yaml", small))


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.deep) for name in sorted(ROWS)],
)
def test_a_file_plans_and_has_the_papers_rows(name: str, stand_ins: Path, tmp_path: Path) -> None:
    nodes = built(name, stand_ins)
    experiment = nodes.experiment
    assert {*experiment.methods} == ROWS[name]
    cells = nodes.evaluations or nodes.scores
    tasks = {task for _, task, _ in cells}
    assert {*nodes.choices} == ({CHOSEN} if name.endswith("table6") else set())
    assert {(m, t) for m, t, _ in cells} == {(m, t) for m in ROWS[name] for t in tasks}
    # No row is another by another name.
    assert len({str(node.ref) for node in cells.values()}) == len(cells)
    if not name.startswith("paper/"):
        plan = make_plan(nodes, Preview(nodes.graph, tmp_path / "home", experiment.runtime))
        assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
        assert plan.n_tokens > 0
    assert not (tmp_path / "home").exists()


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
