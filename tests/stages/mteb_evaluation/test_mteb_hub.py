"""Tasks of mteb by name, and named suites of them."""

from pathlib import Path
from typing import Any

import mteb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from permafrost.stages.mteb_evaluation import SUITE_NAMES, HubTask, suite, task_facts
from permafrost.stages.mteb_evaluation.hub import find_task, load_data
from permafrost.storage.errors import InputError

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("name", SUITE_NAMES)
def test_every_task_of_a_suite_is_one_of_mtebs_and_about_english(name: str) -> None:
    for config in suite(name).values():  # type: ignore[arg-type]
        task = find_task(config)
        assert task.metadata.modalities == ["text"]
        languages = task.metadata.eval_langs
        if isinstance(languages, dict):
            found = {code for subset in task.hf_subsets for code in languages[subset]}
        else:
            found = set(languages)
        assert found == {"eng-Latn"}


@pytest.mark.parametrize(
    ("name", "benchmark"),
    [
        pytest.param("mteb-eng-v1", "MTEB(eng, v1)", marks=pytest.mark.deep),
        pytest.param("mteb-eng-v2", "MTEB(eng, v2)", marks=pytest.mark.deep),
        pytest.param("beir", "BEIR", marks=pytest.mark.deep),
        ("longembed", "LongEmbed"),
    ],
)
def test_suites_are_mtebs_benchmarks(name: Any, benchmark: str) -> None:
    def identity(task: Any) -> Any:
        return task.metadata.name, tuple(task.hf_subsets), tuple(task.eval_splits)

    mine = {identity(find_task(config)) for config in suite(name).values()}
    assert mine == {identity(task) for task in mteb.get_benchmark(benchmark).tasks}


def kinds(name: Any) -> dict[str, set[str]]:
    """Names of a suite's tasks by mteb's kind."""
    found: dict[str, set[str]] = {}
    for task in map(find_task, suite(name).values()):
        found.setdefault(task.metadata.type, set()).add(task.metadata.name)
    return found


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "va14",
            {
                "Clustering": 3,
                "Retrieval": 3,
                "STS": 3,
                "Classification": 2,
                "PairClassification": 1,
                "Reranking": 2,
            },
        ),
        ("htp30", {"Classification": 11, "Reranking": 3, "Clustering": 11, "STS": 5}),
        ("htp-beir", {"Retrieval": 7}),
        ("htp-longembed", {"Retrieval": 4}),
    ],
)
def test_the_papers_suites_have_as_many_tasks_of_each_kind_as_they_print(
    name: Any, expected: dict[str, int]
) -> None:
    assert {kind: len(names) for kind, names in kinds(name).items()} == expected


def test_htps_general_tasks_are_those_of_its_table_19() -> None:
    found = kinds("htp30")
    assert found["STS"] == {f"STS{year}" for year in range(12, 17)}
    assert found["Reranking"] == {
        "AskUbuntuDupQuestions",
        "MindSmallReranking",
        "StackOverflowDupQuestions",
    }
    of_benchmark: dict[str, set[str]] = {}
    for task in mteb.get_benchmark("MTEB(eng, v1)").tasks:
        of_benchmark.setdefault(task.metadata.type, set()).add(task.metadata.name)
    assert found["Clustering"] == of_benchmark["Clustering"]
    # The paper has an instruction for the polarity of reviews, and no score.
    assert found["Classification"] == of_benchmark["Classification"] - {
        "AmazonPolarityClassification"
    }


def test_htps_searches_are_part_of_beir_and_longembed() -> None:
    assert suite("htp-beir").keys() < suite("beir").keys()
    left_out = suite("longembed").keys() - suite("htp-longembed").keys()
    assert left_out == {"LEMBNeedleRetrieval", "LEMBPasskeyRetrieval"}


def test_facts_hold_the_commit_that_mteb_pins() -> None:
    facts = task_facts(HubTask(name="STS17", subsets=("en-en",)))
    pinned: Any = mteb.get_task("STS17").metadata.dataset
    assert facts.category == "STS"
    assert facts.key["dataset"] == {"path": pinned["path"], "revision": pinned["revision"]}
    assert facts.key["subsets"] == ["en-en"]
    assert facts.key["main_score"] == "cosine_spearman"
    other = task_facts(HubTask(name="STS17", subsets=("en-en",), revision="f" * 40))
    assert other.key["dataset"]["revision"] == "f" * 40
    assert mteb.get_task("STS17").metadata.dataset == pinned, "mteb's own task was changed"


def test_languages_keep_the_subsets_that_have_no_other() -> None:
    assert find_task(HubTask(name="STS17", languages=("eng",))).hf_subsets == ["en-en"]
    assert find_task(HubTask(name="STS12", languages=("eng",))).hf_subsets == ["default"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"name": "STSBenchmarc"}, "no task 'STSBenchmarc' among its .* near it are STSBenchmark"),
        ({"name": "qqqqqqqq"}, "no task 'qqqqqqqq' among its .*documentation"),
        ({"name": "STS17", "subsets": ("xx",)}, "has no subset 'xx'; it has .*en-en"),
        ({"name": "CQADupstackRetrieval", "splits": ("dev",)}, "has no split 'dev'; it has test"),
        ({"name": "STS12", "languages": ("deu",)}, "STS12 .* deu"),
        ({"name": "CIFAR10"}, "is about image"),
        (
            {"name": "CQADupstackRetrieval", "revision": "f" * 40},
            "the mean of 12 others, .* leave 'revision' out",
        ),
    ],
)
def test_what_mteb_does_not_have_is_refused(fields: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        find_task(HubTask(**fields))


def test_without_a_hub_the_task_and_the_way_out_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    task = find_task(HubTask(name="STS12"))

    def offline(**_: Any) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(task, "load_data", offline)
    with pytest.raises(InputError, match=r"STS12 .*mteb/sts12.*no route.*kind 'local'"):
        load_data(task)


def folder_of_splits(folder: Path, tables: dict[str, dict[str, list[Any]]]) -> Path:
    """A dataset as the hub has them; its tables by `configuration/split`."""
    configs: dict[str, list[str]] = {}
    for name, columns in tables.items():
        config, split = name.split("/")
        path = folder / config / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(columns), path)
        configs.setdefault(config, []).append(
            f"  - split: {split}\n    path: {config}/{split}.parquet\n"
        )
    listed = [f"- config_name: {c}\n  data_files:\n{''.join(f)}" for c, f in configs.items()]
    (folder / "README.md").write_text(f"---\nconfigs:\n{''.join(listed)}---\n")
    return folder


def task_from(folder: Path, name: str, *splits: str) -> Any:
    """A task of mteb with the dataset in a folder."""
    task = find_task(HubTask(name=name, splits=splits))
    dataset = {**task.metadata.dataset, "path": str(folder)}
    task.metadata = task.metadata.model_copy(update={"dataset": dataset})
    return task


def test_splits_that_mteb_does_not_score_are_loaded_and_others_refused(tmp_path: Path) -> None:
    rows = {"sentence1": ["a"], "sentence2": ["b"], "score": [1.0]}
    folder = folder_of_splits(tmp_path, {"default/validation": rows, "default/test": rows})
    task = task_from(folder, "STSBenchmark", "validation")
    load_data(task)
    assert task.eval_splits == ["validation"]
    says = "STSBenchmark has no split 'dev'; its dataset .* has validation, test as mteb"
    with pytest.raises(InputError, match=says):
        load_data(task_from(folder, "STSBenchmark", "dev"))


def test_a_search_without_judgements_of_a_split_is_refused(tmp_path: Path) -> None:
    """mteb's loader would read those of the only split that there is."""
    texts, judged = {"_id": ["1"], "text": ["a"]}, {"query-id": ["1"], "corpus-id": ["1"]}
    tables = {
        "default/test": judged | {"score": [1]},
        "corpus/corpus": texts | {"title": [""]},
        "queries/queries": texts,
    }
    folder = folder_of_splits(tmp_path, tables)
    load_data(task_from(folder, "SciFact", "test"))
    with pytest.raises(InputError, match=r"SciFact has no split 'train'; its dataset .* has test"):
        load_data(task_from(folder, "SciFact", "train"))
