"""Instructions of tasks in experiments: which store each text of each method is read from."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.evaluations import instructed_recipes
from permafrost.flows.pipeline import run_serially
from permafrost.storage.durable import read_json, write_json
from permafrost.storage.errors import InputError
from permafrost.storage.features.store import FeatureStore, store_folder
from tests.flows.conftest import MadeOnce
from tests.flows.experiments import pairs, rows_of, write
from tests.flows.looked import Looked, look
from tests.stages.extraction.tiny_models import save_model
from tests.stages.mteb_evaluation.small_tasks import write_tasks

EXPERIMENTS = Path(__file__).parents[2] / "experiments" / "papers" / "htp" / "paper"
FILES = ("table3.yaml", "table1.yaml", "table2.yaml")
SCIFACT = (
    "Given a scientific claim, retrieve documents that support or refute the claim Text: {text}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def tiny_llama(made_once: MadeOnce) -> Path:
    """With room for an instruction and for two copies: its tokenizer has a token for nearly every letter."""

    def make(folder: Path) -> None:
        save_model("llama", folder)
        config = read_json(folder / "config.json")
        write_json(folder / "config.json", config | {"max_position_embeddings": 2048})

    return made_once("roomy_llama", make)


def small(name: str, backbone: Path) -> list[str]:
    """Overrides that fit a file of the papers to a decoder of three layers."""
    found = [f"backbone={{source: '{backbone}', max_length: 400}}", "recipes.htp.stop=2"]
    found += ["recipes.token_prepending.stop=2", "methods.HTP.layers='2'"]
    if name == FILES[0]:
        return [*found, "methods.TP.layers='2'"]
    if name == FILES[2]:
        found += [f"recipes.htp, K {k}.stop=2" for k in (2, 12)]
        found += [f"methods.HTP, K {k}.layers='2'" for k in (2, 12)]
    found += ["methods.TP + PromptEOL.layers='2'", "methods.TP mean.layers='2'"]
    return [*found, "recipes.token_prepending, mean.stop=2"]


def local(folder: Path, kind: str) -> str:
    return f"{{kind: local, type: {kind}, path: '{folder / kind}'}}"


def twin(folder: Path, backbone: Path, *more: str) -> list[str]:
    """Overrides that put small local tasks with names of mteb's in the place of a suite."""
    tasks = {"SciFact": "retrieval", "Banking77Classification": "classification", "STS12": "sts"}
    named = ", ".join(f"{task}: {local(folder, kind)}" for task, kind in tasks.items())
    found = [*small(FILES[0], backbone), "runtime={workers: 2, extract: {device: cpu}}"]
    return [
        *found,
        "evaluations.general.suites=[]",
        f"evaluations.general.tasks={{{named}}}",
        *more,
    ]


def general(folder: Path, backbone: Path, home: Path, *more: str) -> Looked:
    path = EXPERIMENTS / FILES[0]
    return look(path, home, twin(folder, backbone, *more))


def instructions(dag: Looked, method: str, task: str) -> dict[str, str | None]:
    """What the key of an evaluation says of each role."""
    stores: Any = dag.nodes.evaluations[method, task, 0].spec.config["embedding"]["stores"]  # type: ignore[index]
    return {role: ids[0]["recipe"].get("instruction") for role, ids in stores.items()}


@pytest.mark.deep
@pytest.mark.parametrize(
    ("name", "n_cells"),
    [
        pytest.param(FILES[0], 30 * 5, marks=pytest.mark.deep),
        (FILES[1], 7 * 6),
        (FILES[2], 4 * 8),
    ],
)
def test_htps_tables_are_laid_out_from_names_alone(
    tiny_llama: Path, tmp_path: Path, name: str, n_cells: int
) -> None:
    dag = look(EXPERIMENTS / name, tmp_path / "home", small(name, tiny_llama))
    nodes = dag.nodes.evaluations
    assert len({str(node.spec.ref) for node in nodes.values()}) == len(nodes) == n_cells
    told = {
        method: instructions(dag, method, task) for method, task, _ in nodes if task[:3] != "STS"
    }
    silent = {method for method, said in told.items() if not any(said.values())}
    prompts = {"PromptEOL", "TP", "TP + PromptEOL"}
    assert silent == {method for method, _, _ in nodes} & prompts
    if name == FILES[0]:
        assert not any(instructions(dag, "HTP", "STS14").values())
        e = dag.experiment
        instructed = instructed_recipes(e.evaluation_cells, e.all_recipes)
        # Tasks with the same words share a store per recipe.
        words = {t.partition(" · ")[2] for t in dag.stores} - {""}
        assert len(words) == len(instructed) / 3
        assert len(words) < 25
    elif name == FILES[1]:
        # A search has no texts that are neither.
        assert instructions(dag, "HTP", "SciFact") == {"query": SCIFACT, "document": None}
    else:
        assert instructions(dag, "Echo", "LEMBQMSumRetrieval")["query"] == (
            "Retrieve relevant document. {text}"
        )


def test_the_instruction_of_a_task_is_in_the_keys_of_what_reads_it_and_nowhere_else(
    folder: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    def keys(*more: str) -> dict[tuple[str, str, int], str]:
        dag = general(folder, tiny_llama, tmp_path, *more)
        return {cell: str(node.spec.ref) for cell, node in dag.nodes.evaluations.items()}

    def touched(before: dict[Any, str], after: dict[Any, str]) -> set[tuple[str, str]]:
        return {cell[:2] for cell in before if before[cell] != after[cell]}

    as_printed, where = keys(), "evaluations.general.instructions"
    reading = ("mean", "Echo", "HTP")
    told = {(m, t) for m in reading for t in ("SciFact", "Banking77Classification")}
    # As Value Aggregation's prompt-free rows.
    assert touched(as_printed, keys(f"{where}={{kind: none}}")) == told
    other = keys(f"{where}.tasks={{SciFact: Find the proof.}}")
    assert touched(as_printed, other) == {(m, "SciFact") for m in reading}
    other = keys(f"{where}.methods=[HTP]")
    assert touched(as_printed, other) == {cell for cell in told if cell[0] != "HTP"}
    other = keys(f"{where}.forms={{Retrieval: {{query: 'Q {{instruction}} {{text}}'}}}}")
    assert touched(as_printed, other) == {(m, "SciFact") for m in reading}
    # mteb has the same words for the claims, and other ones for the intents.
    assert touched(as_printed, keys(f"{where}.kind=mteb")) == {
        (m, "Banking77Classification") for m in reading
    }


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.UndefinedMetricWarning")
def test_queries_are_read_with_their_instruction_and_documents_without(
    folder: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    path, home = EXPERIMENTS / FILES[0], tmp_path / "home"
    methods = "mean: {kind: embed}, Echo: {kind: embed, recipe: echo}"
    fewer = (
        f"methods={{{methods}, HTP: {{kind: embed, layers: '2', recipe: htp}}}}",
        "report.claims=[]",
    )
    result = run_serially(path, home, twin(folder, tiny_llama, *fewer))
    assert len(rows_of(result)) == 3 * 3
    dag = general(folder, tiny_llama, home, *fewer)
    queries, documents, classes, sts = (
        set(dag.corpus(f"{name} of evaluation").texts)
        for name in (
            "SciFact · query",
            "SciFact · document",
            "Banking77Classification · text",
            "STS12 · text",
        )
    )
    for recipe in ("default", "echo", "htp"):
        held = {
            name: {
                t
                for s in store.segments()
                for t in store.segment(s).table.column("text").to_pylist()
            }
            for name, stores in dag.stores.items()
            for store in [
                FeatureStore.open(store_folder(home, stores.targets[0].identity.store_id))
            ]
            if name == recipe or name.startswith(f"{recipe} · ")
        }
        (banking,) = (name for name in held if "banking" in name)
        assert held == {
            recipe: documents | sts,
            f"{recipe} · {SCIFACT}": queries,
            banking: classes,
        }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"methods": ["men"]},
            r"general.instructions.methods names 'men'; the evaluation has mean",
        ),
        (
            {"tasks": {"scifact": "Find."}},
            r"instructions.tasks names 'scifact'; the evaluation has",
        ),
        ({"kind": "custom"}, "none for the task 'SciFact': 'tasks' does not name it"),
        ({"methods": ["head"]}, "for 'head', which is trained on texts without them"),
        ({"methods": ["white"]}, "for 'white', which fits its whitening on texts without"),
        ({"methods": ["own"]}, "whose recipe 'own' has one of its own, 'Find {text}'"),
        (
            {"methods": ["mean"], "tasks": {"SciFact": "Named"}},
            "recipes has the name 'default · Named",
        ),
        (
            {
                "methods": ["mean"],
                "forms": {"Retrieval": {"query": "{instruction} {first} {text}"}},
            },
            r"'SciFact' has the instruction .* for query, which the recipe 'default' cannot take",
        ),
        ({"kind": "suites"}, "evaluations.general.instructions"),
    ],
)
def test_instructions_that_cannot_be_given_are_refused(
    folder: Path, tiny_llama: Path, tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    for seed, split in enumerate(("train", "dev", "test")):
        pairs(tmp_path / f"{split}.parquet", 8, seed)
    files = {split: str(tmp_path / f"{split}.parquet") for split in ("train", "dev", "test")}
    columns = {"kind": "similarity", "text": "a", "text_pair": "b", "label": "score"}
    content: dict[str, Any] = {
        "name": "refused",
        "backbone": {"source": str(tiny_llama), "max_length": 400},
        "capture": "hidden=2@tokens",
        "recipes": {
            "own": {"kind": "plain", "instruction": "Find {text}"},
            "default · Named Text: {text}": "plain",
        },
        "tasks": {"pairs": {"kind": "files", "files": files, "task": columns}},
        "methods": {
            "mean": {"kind": "embed"},
            "own": {"kind": "embed", "recipe": "own"},
            "named": {"kind": "embed", "recipe": "default · Named Text: {text}"},
            "white": {"kind": "embed", "whitening": {}},
            "head": {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/2"},
        },
        "evaluations": {
            "general": {
                "tasks": {
                    "SciFact": {
                        "kind": "local",
                        "type": "retrieval",
                        "path": str(folder / "retrieval"),
                    }
                },
                "methods": ["mean", "own", "white", "head"],
                "fitted_on": "pairs",
                "instructions": {"kind": "suite", "methods": ["mean"]} | change,
            }
        },
        "report": {"title": "Refused"},
    }
    path = write(tmp_path / "experiment.yaml", content)
    with pytest.raises(InputError, match=says):
        look(path, tmp_path / "home")
