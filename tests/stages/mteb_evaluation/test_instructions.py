"""Instructions of tasks: whose words, around which texts."""

import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from mteb.abstasks.task_metadata import TaskType
from pydantic import TypeAdapter, ValidationError

from permafrost.stages.mteb_evaluation import (
    SUITE_NAMES,
    HubTask,
    Instructions,
    LocalTask,
    suite,
    task_instructions,
)
from permafrost.stages.mteb_evaluation.hub import find_task
from permafrost.stages.mteb_evaluation.instructions import FormCategory, suite_instructions
from permafrost.storage.errors import InputError
from tests.stages.mteb_evaluation.small_tasks import task

ROOT = Path(__file__).parents[3]


def given(**fields: Any) -> Instructions:
    return TypeAdapter[Instructions](Instructions).validate_python(fields)


def said(config: Instructions, name: str) -> dict[str, str]:
    found = task_instructions(config, name, HubTask(name=name))
    return {str(role): words for role, words in found.items()}


def local(kind: str) -> LocalTask:
    return task(Path("nowhere"), kind)


def test_htps_words_are_there_for_every_task_of_its_suites_but_sts() -> None:
    carried = suite_instructions()
    asked = {*suite("htp30"), *suite("htp-beir"), *suite("htp-longembed")}
    assert carried.keys() - asked == {"AmazonPolarityClassification"}
    assert asked - carried.keys() == {f"STS{year}" for year in range(12, 17)}
    for name in asked:
        assert find_task(HubTask(name=name)).metadata.name == name
    assert (
        carried["ArguAna"] == "Given a claim, retrieve documents that support or refute the claim"
    )
    assert carried["LEMBQMSumRetrieval"] == "Retrieve the relevant document"


def test_htps_words_are_not_mtebs_where_the_paper_differs() -> None:
    def words_of_mteb(name: str) -> Any:
        prompt: Any = find_task(HubTask(name=name)).metadata.prompt
        return prompt["query"] if isinstance(prompt, dict) else prompt

    differing = {
        name for name, words in suite_instructions().items() if words != words_of_mteb(name)
    }
    assert {
        "ArguAna",
        "NFCorpus",
        "ArxivClusteringS2S",
        "RedditClustering",
        "StackExchangeClustering",
        "AmazonCounterfactualClassification",
    } < differing
    assert "EmotionClassification" not in differing


def test_every_data_file_of_the_packages_is_installed_with_them() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {
        path
        for package, patterns in project["tool"]["setuptools"]["package-data"].items()
        for pattern in patterns
        for path in (ROOT / package.replace(".", "/")).resolve().glob(pattern)
    }
    found = {
        path
        for folder in (ROOT / "flows", ROOT / "stages", ROOT / "storage", ROOT / "permafrost")
        for path in folder.rglob("*.*")  # does not follow the links in permafrost
        if path.is_file() and path.suffix not in (".py", ".pyc")
    }
    assert ROOT / "stages/mteb_evaluation/htp_instructions.csv" in found
    assert found == declared


@pytest.mark.parametrize("kind", ["suite", "mteb"])
def test_queries_alone_are_told_in_retrieval_every_text_elsewhere_none_on_sts(kind: str) -> None:
    config = given(kind=kind)
    search = said(config, "SciFact")
    words = "Given a scientific claim, retrieve documents that support or refute the claim"
    assert search == {"query": f"{words} Text: {{text}}"}
    words = "Retrieve duplicate questions from AskUbuntu forum {text}"
    assert said(config, "AskUbuntuDupQuestions") == dict.fromkeys(
        ("text", "query", "document"), words
    )
    words = "Classify Amazon reviews into positive or negative sentiment {text}"
    assert said(config, "AmazonPolarityClassification")["text"] == words
    assert said(config, "STS12") == {}


def test_none_is_the_default_and_says_nothing() -> None:
    assert said(given(kind="none"), "SciFact") == {}


def test_mteb_is_asked_as_mteb_asks_itself() -> None:
    # No prompt of its own: that of its class, as in `AbsEncoder.get_instruction`.
    assert said(given(kind="mteb"), "LEMBQMSumRetrieval") == {
        "query": "Retrieve text based on user query. Text: {text}"
    }
    assert said(given(kind="mteb"), "CQADupstackRetrieval") == {
        "query": "Retrieve text based on user query. Text: {text}"
    }
    # mteb has words for queries; documents have none, whatever form they have.
    both = {"Retrieval": {"query": "{instruction} {text}", "document": "{instruction} {text}"}}
    assert said(given(kind="mteb", forms=both), "SciFact").keys() == {"query"}
    assert said(given(kind="suite", forms=both), "SciFact").keys() == {"query", "document"}


def test_words_and_forms_of_ones_own_come_first() -> None:
    config = given(
        kind="suite",
        tasks={"SciFact": "Find the proof.", "NFCorpus": None},
        forms={"Retrieval": {"query": "Instruct: {instruction}\nQuery: {text}"}, "STS": {}},
    )
    assert said(config, "SciFact") == {"query": "Instruct: Find the proof.\nQuery: {text}"}
    assert said(config, "NFCorpus") == {}
    assert said(config, "ArguAna")["query"].startswith("Instruct: Given a claim")
    assert said(config, "Banking77Classification")["text"].endswith("intents {text}")
    # The released code of HTP has one instruction for the queries of all tasks.
    config = given(kind="custom", others="Retrieve relevant document.", tasks={"SciFact": "Find."})
    assert said(config, "NFCorpus") == {"query": "Retrieve relevant document. Text: {text}"}
    assert said(config, "SciFact") == {"query": "Find. Text: {text}"}


def test_a_local_task_is_looked_up_by_its_name() -> None:
    for kind in ("suite", "mteb"):
        found = task_instructions(given(kind=kind), "SciFact", local("retrieval"))
        assert found == said(given(kind=kind), "SciFact")
    # What it is decides where the words stand.
    found = task_instructions(given(kind="suite"), "SciFact", local("reranking"))
    assert found.keys() == {"text", "query", "document"}
    assert task_instructions(given(kind="suite"), "mine", local("sts")) == {}


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (
            {"kind": "suite"},
            "none for the task 'mine': the suites have none for 'mine'; .*null for",
        ),
        ({"kind": "mteb"}, "none for the task 'mine': mteb has no task 'mine'"),
        ({"kind": "custom", "tasks": {"other": "Find."}}, "'tasks' does not name it"),
    ],
)
def test_a_task_without_words_is_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        task_instructions(given(**config), "mine", local("classification"))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"kind": "custom", "others": " "}, "is blank; write null"),
        (
            {"kind": "suite", "tasks": {"a": "Find {text}"}},
            "contains {text}; set where the text goes",
        ),
        ({"kind": "suite", "tasks": {"a": "Find {first}"}}, "contains {first}"),
        ({"kind": "suite", "forms": {"STS": {"text": "{text}"}}}, "contains {instruction} 0 times"),
        (
            {"kind": "suite", "forms": {"other": {"text": "{instruction}"}}},
            "contains {text} 0 times",
        ),
        ({"kind": "suite", "forms": {"retrieval": {}}}, "forms.retrieval"),
        ({"kind": "suite", "forms": {"STS": {"queries": "{instruction} {text}"}}}, "queries"),
    ],
)
def test_wrong_words_and_forms_are_refused(config: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        given(**config)


def test_forms_name_kinds_of_task_as_mteb_does() -> None:
    kinds = set(get_args(FormCategory)) - {"other"}
    assert kinds <= set(get_args(TaskType))
    for name in SUITE_NAMES:
        assert {find_task(config).metadata.type for config in suite(name).values()} <= kinds
