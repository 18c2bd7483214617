"""Every kind of damage to every kind of file of a home: no wrong number, no traceback, named, put right."""

from pathlib import Path

import pytest

from permafrost.storage.errors import PermafrostError
from tests.damage.kinds import DAMAGE, Kind, damage, kinds
from tests.damage.small_home import (
    SmallHome,
    build,
    check_reads,
    garbage,
    problems,
    put_right,
)

KINDS = (
    "store.json",
    "copy of store.json",
    "segment table",
    "copy of a table",
    "first segment's table",
    "root group",
    "group",
    "group of projections",
    "writer.lock",
    "manifest",
    "manifest that no run uses",
    "file of an artifact",
    "run",
    *(
        f"{what} of {array}"
        for array in ("token_ids", "hidden/1", "pooled/hidden_mean/1")
        for what in ("metadata", "shard", "receipt")
    ),
    *(
        f"{what} of {name}"
        for name in ("o_proj", "o_proj_bias")
        for what in ("numbers", "metadata")
    ),
)


HOW = (*DAMAGE, "swap")
SHORT = {
    "store.json": "digit",
    "copy of store.json": "empty",
    "segment table": "delete",
    "root group": "dangling link",
    "manifest": "flip",
    "file of an artifact": "cut",
    "run": "late flip",
    "metadata of token_ids": "folder",
    "shard of hidden/1": "zeros",
    "receipt of hidden/1": "longer",
    "numbers of o_proj": "swap",
}
"""Each damage once; all others are deep."""
AS_ANOTHER = ("group of projections", "pooled/hidden_mean/1", "o_proj_bias")
"""Files that are read and mended as those of another group or array: those by night."""


def marks(name: str, how: str) -> tuple[pytest.MarkDecorator, ...]:
    """When a case is run."""
    if SHORT.get(name) == how:
        return ()
    if name.endswith(AS_ANOTHER):
        return pytest.mark.deep, pytest.mark.night
    return (pytest.mark.deep,)


CASES = [
    pytest.param(name, how, id=f"{name}: {how}", marks=marks(name, how))
    for name in KINDS
    for how in HOW
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> SmallHome:
    made = build(tmp_path_factory.mktemp("damage") / "home")
    assert set(kinds(made)) == set(KINDS)
    assert problems(made) == []
    assert check_reads(made) == 0
    return made


@pytest.mark.parametrize(("name", "how"), CASES)
def test_damage_is_never_read_as_data_is_named_and_put_right(
    home: SmallHome, tmp_path: Path, name: str, how: str
) -> None:
    mine = home.copied(tmp_path / "home")
    kind = kinds(mine)[name]
    if not damage(kind, how):
        pytest.skip("it changes nothing here")
    check_reads(mine)
    found = problems(mine)
    assert found or how in kind.silent, "verify is silent"
    check_reads(mine)
    _check_gc(home, mine, kind, how)
    put_right(mine)
    assert problems(mine) == []
    assert check_reads(mine) == 0
    assert garbage(mine) == garbage(home)


def _check_gc(home: SmallHome, mine: SmallHome, kind: Kind, how: str) -> None:
    """It stops, or would remove what it would have removed before."""
    must_stop = kind.guards and how not in kind.silent
    try:
        removed = garbage(mine)
    except PermafrostError:
        return
    assert not must_stop, f"gc does not stop; it would remove {removed}"
    if how not in kind.silent:
        assert removed <= garbage(home)
