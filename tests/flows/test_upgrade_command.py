"""`permafrost upgrade`: a folder that an earlier version exported names what can be imported today."""

import json
import shutil
from pathlib import Path

import pytest

from permafrost.storage.durable import read_json
from tests.flows.frozen_home import unpack
from tests.flows.test_cli import Cli


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("frozen"))


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return HomelessCli(tmp_path / "home", capsys)


class HomelessCli(Cli):
    """`upgrade` needs no home."""

    def __call__(self, *arguments: str, code: int = 0) -> str:
        return self.without_home(*arguments, code=code)


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    files = (p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def test_what_names_an_old_module_is_rewritten_once(frozen: Path, tmp_path: Path, cli: Cli) -> None:
    folder = shutil.copytree(frozen / "module", tmp_path / "module")
    before = content(folder)
    said = cli("upgrade", str(folder))
    assert said == f"rewrote README.md and modules.json {folder}"
    after = content(folder)
    changed = {name for name in before if before[name] != after[name]}
    assert (changed, set(after)) == ({"README.md", "modules.json"}, set(before))
    (module,) = read_json(folder / "modules.json")
    assert module == {"idx": 0, "name": "0", "path": "", "type": "permafrost.FrozenBackboneHead"}
    assert b"\nfrom permafrost import load_exported\n" in after["README.md"]
    assert cli("upgrade", str(folder)) == f"up to date; nothing was changed {folder}"
    assert content(folder) == after
    assert cli.json("upgrade", str(folder)) == {"folder": str(folder), "changed": []}


def test_modules_of_others_stay_and_so_do_the_words_of_a_card(
    frozen: Path, tmp_path: Path, cli: Cli
) -> None:
    folder = shutil.copytree(frozen / "module", tmp_path / "module")
    (old,) = read_json(folder / "modules.json")
    other = {"idx": 1, "name": "1", "path": "1_N", "type": "sentence_transformers.models.Normalize"}
    (folder / "modules.json").write_text(json.dumps([old, other]))
    (folder / "README.md").write_bytes(b"Mine \xff: from stages.encoder import load_exported")
    assert cli.json("upgrade", str(folder))["changed"] == ["modules.json"]
    assert read_json(folder / "modules.json") == [
        old | {"type": "permafrost.FrozenBackboneHead"},
        other,
    ]


def test_the_plain_form_has_nothing_to_upgrade(frozen: Path, tmp_path: Path, cli: Cli) -> None:
    before = content(frozen / "plain")
    assert "plain form, which needs no Permafrost" in cli("upgrade", str(frozen / "plain"))
    assert content(frozen / "plain") == before


@pytest.mark.parametrize(
    ("modules", "code", "says"),
    [
        (None, 2, "has no modules.json"),
        ('[{"type": "sentence_transformers.models.Pooling"}]', 2, "no module of Permafrost"),
        ("[]", 2, "names nothing and no module"),
        ("[{]", 1, "is not valid JSON"),
        ('[{"idx": 0}]', 1, "lists no modules with a type"),
        ('{"type": "x"}', 1, "lists no modules with a type"),
    ],
)
def test_what_is_no_export_is_refused_and_left(
    tmp_path: Path, cli: Cli, modules: str | None, code: int, says: str
) -> None:
    if modules is not None:
        (tmp_path / "modules.json").write_text(modules)
    before = content(tmp_path)
    assert says in cli("upgrade", str(tmp_path), code=code)
    assert content(tmp_path) == before
