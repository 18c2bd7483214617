"""The texts of a task from the hub are those that mteb asks for when it runs the task."""

from pathlib import Path

import pytest

from permafrost.stages.mteb_evaluation import HubTask, Role, hub, hub_corpus
from permafrost.stages.mteb_evaluation.build import build_task
from permafrost.storage.errors import InputError
from permafrost.storage.keys import text_digest
from tests.stages.mteb_evaluation.small_tasks import KINDS, task, write_tasks

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_those_that_mteb_asks_for(
    folder: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = task(folder, kind)
    monkeypatch.setattr(hub, "load_task", lambda _: build_task(local, kind, local.read()))
    for role in local.roles:
        corpus = hub_corpus(HubTask(name=kind), role)
        # Those of a local task are tested against what an evaluation asks for.
        assert set(corpus.texts) == set(local.texts_in(role).texts)
        assert len(set(corpus.texts)) == len(corpus.texts)
        assert corpus.digests == tuple(map(text_digest, corpus.texts))
        assert (corpus.task, corpus.splits) == ("unlabelled", (role,))


def test_a_role_without_a_text_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = task(folder, "sts")
    monkeypatch.setattr(hub, "load_task", lambda _: build_task(local, "x", local.read()))
    with pytest.raises(InputError, match="the task STS12 has no text as query"):
        hub_corpus(HubTask(name="STS12"), "query")


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("STS12", ("text",)),
        ("Banking77Classification", ("text",)),
        ("NFCorpus", ("query", "document")),
        ("AskUbuntuDupQuestions", ("query", "document")),
        ("CQADupstackRetrieval", ("query", "document")),
        # The sides of its pairs differ.
        ("TERRa.V2", ("query", "document")),
    ],
)
def test_roles_are_those_of_mtebs_class(name: str, roles: tuple[Role, ...]) -> None:
    assert HubTask(name=name).roles == roles
