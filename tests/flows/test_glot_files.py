"""The experiment files of GLOT's tables: they parse, plan, and have the paper's rows."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoTokenizer

from permafrost.flows.build import ExperimentGraph, build_graph
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.methods.head import HeadMethod
from permafrost.flows.plan import make_plan
from permafrost.flows.preview import Preview
from permafrost.stages.report.claim_kinds import Claim
from permafrost.storage.errors import InputError
from tests.flows.kinds_in_keys import unkeyed_kinds
from tests.short import short
from tests.stages.extraction.tiny_models import WORDS, save_model

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "papers" / "glot"
TUNED = {"GLOT, LoRA", "GLOT, last block from the cache", "GLOT, shuffled labels"}
SURFACE = {"length only", "bag of words", "constant answer"}
PAPER = {
    *TUNED,
    *SURFACE,
    *("readout", "mean", "max", "scorer", "MLP", "GLOT"),
    *("readout, LoRA", "readout, full", "readout, LoRA, shuffled labels"),
}
FIXED = {"first token", "last token", "mean", "max"}
CONTROLS = {"GLOT, shuffled labels", "constant answer"}
POOLINGS = {*FIXED, *CONTROLS, *SURFACE, "scorer", "GLOT"}
CHOSEN = {"scorer, chosen on dev", "GLOT, tau chosen on dev"}
BROTHERS = "AdaPool (Brothers)"
TAUS = {*(f"tau {t}" for t in ("0.0", "0.2", "0.4", "0.6", "0.8")), "GLOT, tau chosen on dev"}
SVMS = {
    *(f"SVM on {which}GLOT, {t}" for which in ("", "untrained ") for t in TAUS if t[:3] == "tau"),
    *("SVM on the scorer", "SVM on the mean", "SVM, shuffled labels"),
}
TABLE8 = {*(t for t in TAUS if t[:3] == "tau"), *SVMS, *CONTROLS, "scorer"}
CONVS = {"AdaPool (the scorer)", "GCN", "GAT", "GIN", "no graph", *CONTROLS}
PARAMETERS = {"GLOT without its graph", "MLP of equal size", "MLP as released"}
WITHOUT_GRAPH = {*PARAMETERS, *CONTROLS, "GLOT", "scorer", "mean"}
PROMPTS = {"PromptEOL", "Pretended CoT", "Knowledge Enhancement"}
BESIDE = {*CONTROLS, "mean", "mean, linear map", "scorer", "GLOT"}
DECODER = {*BESIDE, *(p + end for p in PROMPTS for end in ("", ", linear map"))}
ENCODER = {*BESIDE, "PromptBERT", "PromptBERT, linear map"}
MTEB = {*FIXED, "scorer", "GLOT"}
WEIGHTS = {*CONTROLS, "mean", "scorer", "GLOT"}
ROWS = {
    "efficiency": {
        *TUNED,
        *SURFACE,
        *("first token", "mean", "max", "scorer", "MLP", "GLOT"),
        *("GLOT, on the fly", "GLOT, last block live"),
        *("first token, LoRA", "first token, full", "GLOT, full"),
        "first token, LoRA, shuffled labels",
    },
    "paper/efficiency_bert": PAPER,
    "paper/efficiency_mistral": PAPER,
    "table1": {*POOLINGS, *CHOSEN, BROTHERS},
    "paper/table1": {*POOLINGS, *CHOSEN},
    "table2": {*POOLINGS, *CHOSEN, BROTHERS},
    "paper/table2": {*POOLINGS, *CHOSEN},
    "table3": {*MTEB, BROTHERS, "mean, whitened", "MLP"},
    "paper/table3": MTEB,
    "table4": {*TAUS, *CONTROLS, "scorer", "all connected", "none connected"},
    "paper/table4": {*TAUS, *CONTROLS, "scorer"},
    "table8": TABLE8,
    "paper/table8": TABLE8,
    "table7": POOLINGS,
    "paper/table7": POOLINGS,
    "table11": {*CONVS, "GIN, not normalised"},
    "paper/table11": CONVS,
    "table12": MTEB,
    "paper/table12": MTEB,
    "table13": ENCODER,
    "paper/table13": ENCODER,
    "table13_decoder": DECODER,
    "paper/table13_decoder": DECODER,
    "table15": WITHOUT_GRAPH,
    "paper/table15": WITHOUT_GRAPH,
    "figure5": WEIGHTS,
    "paper/figure5": WEIGHTS,
}
"""Rows by file; those of table 6 are in test_grid_files.py."""
EACH = short(ROWS, "table2", "table13_decoder", "efficiency")
GLUE = {"CoLA", "SST-2", "STS-B", "MRPC", "QQP", "QNLI", "RTE", "WNLI"}
THREE = {"CoLA", "STS-B", "RTE"}
DILUTION = {f"ratio {r}{p}" for r in ("0.2", "0.5", "0.8", "0.9") for p in ("", ", as printed")}
TASKS = {
    "table1": {*GLUE, "MNLI"},
    "paper/table1": {*GLUE, "MNLI-m", "MNLI-mm"},
    "table2": {"IMDB"},
    "table3": {"SciFact pairs"},
    "paper/table3": {"MS MARCO"},
    "table7": DILUTION,
    "table13": {"STS-B"},
    "table13_decoder": {"STS-B"},
    "figure5": {"QQP", "figure 5"},
}
TASKS |= {f"paper/{n}": TASKS[n] for n in ("table2", "table7", "table13", "table13_decoder")}
TASKS |= {"paper/figure5": TASKS["figure5"]}
TASKS |= {p + "table4": TASKS[p + "table1"] for p in ("", "paper/")}
TASKS |= {p + "table12": TASKS[p + "table3"] for p in ("", "paper/")}
TASKS |= {name: THREE for name in ROWS if name not in TASKS}
MISTRAL = {f"paper/{n}" for n in ("table4", "table11", "table13_decoder", "table15")}
MODELS = {
    "paper/efficiency_mistral": ("mistral", 32),
    "paper/efficiency_bert": ("bert", 12),
    **dict.fromkeys(MISTRAL, ("mistral", 32)),
    "table13_decoder": ("llama", 6),
}
"""Family and blocks of the paper's, and of the small decoder."""
PAIR, ONE = ("sentence1", "sentence2"), ("sentence",)
TEXTS = {
    **{f"glue_{n}": ONE for n in ("cola", "sst2")},
    **{f"glue_{n}": PAIR for n in ("mrpc", "rte", "wnli", "qqp")},
    **{f"glue_mnli_{n}": PAIR for n in ("matched", "mismatched")},
    **dict.fromkeys(("stsb", "quora_qp"), PAIR),
    "glue_qnli": ("question", "sentence"),
    "imdb": ("text",),
    "msmarco": ("query", "positive"),
}
SPLITS = {
    **dict.fromkeys(("stsb", "glue_sst2", "glue_mrpc", "msmarco"), ("train", "dev", "test")),
    "quora_qp": ("dev", "test"),
    "imdb": ("train", "test"),
}


def table(columns: tuple[str, ...], n: int, label: str) -> pa.Table:
    texts = {
        c: [f"{WORDS[i]} {WORDS[i + k + 2]} {n}" for i in range(20)] for k, c in enumerate(columns)
    }
    labels = [float(i % 6) for i in range(20)] if label == "score" else [i % 2 for i in range(20)]
    return pa.table({**texts, label: labels})


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small models and made-up data."""
    folder = tmp_path_factory.mktemp("glot")
    for name, columns in TEXTS.items():
        (folder / name).mkdir()
        for n, split in enumerate(SPLITS.get(name, ("train", "dev"))):
            made = table(columns, n, "score" if name == "stsb" else "label")
            pq.write_table(made, folder / name / f"{split}.parquet")
            if name == "msmarco":
                lines = made.select(["query", "positive"]).to_pandas()
                lines.to_json(folder / name / f"{split}.jsonl", orient="records", lines=True)
    (folder / "mnli_sample").mkdir()
    for n, name in enumerate(("matched", "mismatched")):
        pq.write_table(table(PAIR, n, "label"), folder / "mnli_sample" / f"{name}.parquet")
    _write_scifact(folder / "scifact")
    for family, n_blocks in {*MODELS.values(), ("bert", 6)}:
        longer = {} if family == "bert" else {"max_position_embeddings": 300}
        path = folder / f"{family}{n_blocks}"
        save_model(family, path, num_hidden_layers=n_blocks, **longer)
    # A word that it has, as PromptBERT needs a mask.
    tokenizer = AutoTokenizer.from_pretrained(folder / "bert6")
    tokenizer.mask_token = "<unk>"
    tokenizer.save_pretrained(folder / "bert6")
    return folder


def _write_scifact(folder: Path) -> None:
    """The search over documents that pairs are made from."""
    folder.mkdir()
    texts = [f"{WORDS[i]} {WORDS[i + 3]}" for i in range(20)]
    ids = [str(i) for i in range(20)]
    pq.write_table(pa.table({"doc_id": ids, "text": texts}), folder / "corpus.parquet")
    queries = {"query_id": ids, "text": [f"{t} ?" for t in texts]}
    pq.write_table(pa.table(queries), folder / "queries.parquet")
    for split, part in (("train", slice(14)), ("test", slice(14, 20))):
        judged = {"query_id": ids[part], "doc_id": ids[part], "score": [1] * len(ids[part])}
        pq.write_table(pa.table(judged), folder / f"qrels_{split}.parquet")


@pytest.fixture(autouse=True)
def environment(stand_ins: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERMAFROST_DATA", str(stand_ins))
    monkeypatch.setenv("PERMAFROST_MODELS", str(stand_ins))


def small(name: str, folder: Path) -> list[str]:
    """What makes a file small."""
    family, n_blocks = MODELS.get(name, ("bert", 6))
    changes = [f"backbone.source={folder / f'{family}{n_blocks}'}", "backbone.max_length=40"]
    if "table7" in name:
        sizes = {"n_words": 64, "gap": 1, "n_train": 8, "n_dev": 4, "n_test": 4}
        changes += [f"tasks.{task}.{k}={n}" for task in DILUTION for k, n in sizes.items()]
    if "decoder" in name:
        changes.append("backbone.max_length=300")
    sampled = {"table2": ["IMDB"], "efficiency": ["CoLA", "STS-B"]}
    changes += [f"tasks.{task}.sample.n_rows={{train: 15}}" for task in sampled.get(name, [])]
    if "table3" in name or "table12" in name:
        sts = f"{{kind: local, type: sts, path: {folder / 'stsb'}}}"
        methods = str(sorted(ROWS[name]))
        fitted = "SciFact pairs" if "paper" not in name else "MS MARCO"
        changes.append(
            f"evaluations.mteb={{fitted_on: {fitted}, methods: {methods}, tasks: {{STS: {sts}}}}}"
        )
    return [*changes, "seeds=[0]"]


@cache
def built(name: str, folder: Path) -> ExperimentGraph:
    return build_graph(load_experiment(FOLDER / f"{name}.yaml", small(name, folder)))


@pytest.mark.parametrize("name", EACH)
def test_a_file_plans_and_has_the_papers_rows(name: str, stand_ins: Path, tmp_path: Path) -> None:
    nodes = built(name, stand_ins)
    experiment = nodes.experiment
    assert {*experiment.methods} == ROWS[name]
    assert {*experiment.tasks} == TASKS[name]
    scored = [r for r in ROWS[name] if experiment.tasks_of(r)]
    assert {row for row, _, _ in nodes.fits} >= {*scored}
    assert not unkeyed_kinds(nodes.graph)
    plan = make_plan(nodes, Preview(nodes.graph, tmp_path / "home", experiment.runtime))
    assert sum(row.n_run for row in plan.rows) == len(nodes.graph)
    assert plan.n_tokens > 0
    assert not (tmp_path / "home").exists()


def test_a_last_block_from_the_cache_reads_the_one_below(stand_ins: Path) -> None:
    for name in (n for n in ROWS if "efficiency" in n):
        depth = MODELS.get(name, ("bert", 6))[1]
        nodes = built(name, stand_ins)
        fit = nodes.fits["GLOT, last block from the cache", "RTE", 0]
        (states,) = fit.inputs_named("features")
        assert states.ref.endswith(f"/hidden/{depth - 1}")
        assert not nodes.fits["GLOT, LoRA", "RTE", 0].inputs_named("features")


def test_fits_that_tables_share_are_one_node(stand_ins: Path) -> None:
    """One home serves tables 1, 4, 11, 13, 15 and figure 5."""

    def fit(name: str, row: str, task: str) -> str:
        return built(name, stand_ins).fits[row, task, 0].id

    chosen = built("table1", stand_ins).candidates["GLOT, tau chosen on dev", "RTE", 0]
    taus = built("table4", stand_ins).fits
    assert taus["tau 0.2", "CoLA", 0].id == fit("table8", "tau 0.2", "CoLA")
    assert {taus[f"tau {t}", "RTE", 0].id for t in ("0.0", "0.2", "0.4", "0.6", "0.8")} <= {
        node.id for node in chosen
    }
    for other, row, task in (
        ("table11", "GAT", "CoLA"),
        ("table15", "GLOT", "CoLA"),
        ("table13", "GLOT", "STS-B"),
        ("figure5", "GLOT", "QQP"),
    ):
        assert fit(other, row, task) == fit("table1", "GLOT", task), other
    assert fit("table12", "GLOT", "SciFact pairs") == fit("table3", "GLOT", "SciFact pairs")


def test_figure_5_keeps_the_weights_of_the_papers_sentences(stand_ins: Path) -> None:
    for name in ("figure5", "paper/figure5"):
        nodes = built(name, stand_ins)
        shown = nodes.corpora["figure 5"]
        assert shown.config["texts"] == [
            "What is the maximum number of genetically unique individuals that human genome allows?",
            "A person is riding a horse",
        ]
        for method in ("mean", "scorer", "GLOT"):
            score = nodes.scores[method, "QQP", 0]
            assert score.input("chosen").ref == shown.id
            extracted = {
                n.id for (_, task, _), n in nodes.extractions.items() if task == "figure 5"
            }
            assert extracted < {*score.after}
    changed = load_experiment(
        FOLDER / "figure5.yaml", [*small("figure5", stand_ins), "report.weights_of=null"]
    )
    without = build_graph(changed).scores["GLOT", "QQP", 0]
    assert not without.inputs_named("chosen")
    assert without.id != built("figure5", stand_ins).scores["GLOT", "QQP", 0].id
    with pytest.raises(InputError, match=r"report.weights_of names the task 'no task'"):
        load_experiment(FOLDER / "figure5.yaml", ["report.weights_of=no task"])


def test_an_mlp_of_equal_size_has_glots_parameters(stand_ins: Path) -> None:
    fits = built("table15", stand_ins).fits
    configs: dict[str, Any] = {row: fits[row, "RTE", 0].config for row in PARAMETERS}
    heads = {row: config["head"] for row, config in configs.items()}
    assert heads["MLP as released"]["hidden"] == heads["GLOT without its graph"]["hidden"] == 128
    assert heads["MLP of equal size"]["hidden"] > 1


def test_every_file_is_here_and_on_the_papers_page() -> None:
    page = (ROOT / "docs" / "papers" / "glot.md").read_text(encoding="utf-8")
    found = {p.relative_to(FOLDER).with_suffix("").as_posix(): p for p in FOLDER.rglob("*.yaml")}
    assert {*found} == {*ROWS, "table6", "paper/table6"}
    for name, path in found.items():
        text = path.read_text(encoding="utf-8")
        assert f"`{name}.yaml`" in page, name
        assert text.startswith("# GLOT")
        seeds = "[42]" if name == "paper/table6" else "[0, 1, 2]"
        assert f"\nseeds: {seeds}\n" in text
        assert load_experiment(path).methods, "as it stands"


def test_every_table_and_figure_is_on_the_papers_page() -> None:
    page = (ROOT / "docs" / "papers" / "glot.md").read_text(encoding="utf-8")
    for n in range(1, 18):
        assert f"\n| T{n} |" in page
    for n in range(1, 6):
        assert f"\n| F{n} |" in page


def test_what_a_small_file_claims_its_paper_size_claims_too() -> None:
    """As far as it has the rows; so that a run of either is judged alike. Table 3's tasks are others here."""
    found = 0
    for path in FOLDER.glob("*.yaml"):
        for large in sorted((FOLDER / "paper").glob(f"{path.stem}*.yaml")):
            here, there = load_experiment(path), load_experiment(large)
            if there.name != f"glot-paper-{path.stem}":
                continue
            others = {"tasks": ()} if path.stem == "table3" else {}
            claimed = [claim.model_copy(update=others) for claim in there.report.claims]
            for claim in here.report.claims:
                if {*claim.methods} <= {*there.methods}:
                    assert claim.model_copy(update=others) in claimed, (large.stem, claim.says)
                    found += 1
    assert found >= 29


def test_no_file_names_a_block_by_its_number() -> None:
    """So that another `backbone.source` reads the same place."""
    number = re.compile(r"(?:hidden|values)[a-z_]*[/=]\d|layers: \"?\d")
    for path in FOLDER.rglob("*.yaml"):
        assert not number.search(path.read_text(encoding="utf-8")), path


def test_of_another_depth_the_last_block_but_one_is_read(stand_ins: Path) -> None:
    """By two of table 13's prompts, as in their released code."""
    for family, n_blocks in (("llama", 6), ("mistral", 32)):
        change = f"backbone.source={stand_ins / f'{family}{n_blocks}'}"
        path = FOLDER / "table13_decoder.yaml"
        nodes = build_graph(load_experiment(path, [*small("table13_decoder", stand_ins), change]))
        fit = nodes.fits["Pretended CoT, linear map", "STS-B", 0]
        assert fit.config["layer"] == f"pooled/hidden_readout/{n_blocks - 1}"
        embedded = nodes.fits["Knowledge Enhancement", "STS-B", 0]
        assert embedded.config["layers"] == str(n_blocks - 1)


def test_evaluations_of_tables_3_and_12_read_unit_vectors() -> None:
    """As in the released code."""
    for name in ("table3", "table12", "paper/table3", "paper/table12"):
        methods = load_experiment(FOLDER / f"{name}.yaml").methods
        assert {getattr(m, "normalise", None) for m in methods.values()} == {"l2"}, name


def test_every_file_that_trains_on_labels_has_them_shuffled() -> None:
    for path in FOLDER.rglob("*.yaml"):
        if path.stem in ("table3", "table12"):
            continue
        methods = load_experiment(path).methods
        assert "shuffled" in {getattr(m, "labels", None) for m in methods.values()}, path


def test_the_mlp_beside_tuned_backbones_replaces_the_graph_network_alone() -> None:
    """Tables 15 and 17: 9.2M at Mistral's width, with GLOT's concatenation and readout."""
    method = load_experiment(FOLDER / "paper" / "efficiency_mistral.yaml").methods["MLP"]
    assert isinstance(method, HeadMethod)
    head = method.head.build(4096, torch.Generator().manual_seed(0))
    width = 4096 + 2 * 64
    layers = 4096 * 64 + 64 + 64 * 64 + 64
    readout = width * (width // 2) + 2 * (width // 2) + 1
    assert sum(p.numel() for p in head.parameters()) == layers + readout == 9_191_681
    beside = load_experiment(FOLDER / "paper" / "efficiency_bert.yaml").methods
    sizes = {
        row: sum(p.numel() for p in found.head.build(768, torch.Generator()).parameters())
        for row in ("MLP", "GLOT")
        if isinstance(found := beside[row], HeadMethod)
    }
    assert sizes["MLP"] == pytest.approx(sizes["GLOT"], rel=0.01)


PRINTED = {
    "mistral": {
        "CoLA": (49.63, 48.23, 53.29),
        "STS-B": (55.68, 54.54, 80.51),
        "RTE": (55.23, 53.43, 59.21),
    },
    "bert": {
        "CoLA": (38.31, 36.16, 47.49),
        "STS-B": (60.10, 64.64, 83.86),
        "RTE": (56.68, 56.32, 59.21),
    },
}
"""Tables 5 and 9: full fine-tuning, LoRA, GLOT."""


@pytest.mark.parametrize("name", PRINTED)
def test_the_smallest_printed_lead_over_tuned_backbones(name: str) -> None:
    report = load_experiment(FOLDER / "paper" / f"efficiency_{name}.yaml").report
    smallest = min(glot - max(tuned) for *tuned, glot in PRINTED[name].values())
    (claim,) = (c for c in report.claims if isinstance(c, Claim) and "LoRA" in c.says)
    assert claim.gap == pytest.approx(smallest)


def test_tuned_backbones_are_tested_where_table_1_tests(stand_ins: Path) -> None:
    """On GLUE's dev sets, that of STS-B too."""
    there = load_experiment(FOLDER / "paper" / "table1.yaml").tasks
    for name in PRINTED:
        here = load_experiment(FOLDER / "paper" / f"efficiency_{name}.yaml").tasks
        assert here == {task: there[task] for task in THREE}


@pytest.mark.deep
def test_a_head_has_one_fit_for_both_test_sets_of_mnli(stand_ins: Path) -> None:
    nodes = built("paper/table1", stand_ins)
    for row in ("GLOT", "mean"):
        one, two = (nodes.fits[row, f"MNLI-{end}", 0].id for end in ("m", "mm"))
        assert one == two
        scores = {nodes.scores[row, f"MNLI-{end}", 0].id for end in ("m", "mm")}
        assert len(scores) == 2
