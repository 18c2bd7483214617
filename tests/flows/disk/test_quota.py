"""`gc` with a quota: what was used longest ago goes, no more, and what is left is what the disk says."""

import json

import pytest

from permafrost.flows.disk import garbage
from permafrost.flows.disk.garbage import collect
from permafrost.flows.disk.limits import Limits
from permafrost.storage.artifacts import ArtifactRef, ArtifactStore
from permafrost.storage.disk_use import files_under
from permafrost.storage.features.writing import writing
from tests.flows.disk.aged_home import DAY, SIZE, Aged
from tests.flows.test_cli import Cli


def test_a_quota_takes_what_was_used_longest_ago_and_no_more(aged: Aged) -> None:
    total = sum(file.bytes for file in files_under(aged.home))
    every = collect(aged.home, [], limits=Limits(quota_bytes=0))
    assert every.uses is not None
    names = [
        str(o) if isinstance(o, ArtifactRef) else f"features/{o.store_id}" for o in aged.in_order
    ]
    left = total
    assert aged.going(Limits(quota_bytes=total)) == []
    for n, name in enumerate(names, start=1):
        assert aged.going(Limits(quota_bytes=left - 1)) == aged.paths(n)
        left -= every.uses.bytes_of(name)
    assert every.bytes_left == left > SIZE, "the latest run's stays whatever the quota"
    young = collect(aged.home, [], limits=Limits(older_than_s=30 * DAY, quota_bytes=0))
    assert [str(ref) for ref in young.refs] == [str(aged.months)], "both limits"


def test_a_quota_on_the_command_line(aged: Aged, capsys: pytest.CaptureFixture[str]) -> None:
    cli = Cli(aged.home, capsys)
    total = sum(file.bytes for file in files_under(aged.home))
    within = f"{(total - SIZE // 2) / 1000}kB"
    dry = cli("gc", "--dry-run", "--quota", within)
    assert f"artifacts/{aged.months}" in dry
    assert f"artifacts/{aged.derived}" not in dry
    done = cli.json("gc", "--quota", within)
    assert set(done["removed"]) == set(aged.paths(1))
    assert done["bytes_left"] == sum(file.bytes for file in files_under(aged.home))
    assert not done["over_quota"]
    said = cli("gc", "--quota", "1kB", code=1)
    assert "more than the quota of 1.0 kB: the rest is of latest, pinned or" in said
    assert ArtifactStore(aged.home).refs() == [aged.latest]
    for wrong in (
        ("--quota", "lots"),
        ("--quota", "5"),
        ("--older-than", "30"),
        ("--older-than", "x"),
    ):
        assert wrong[0] in cli("gc", *wrong, code=2)


def test_what_a_killed_process_left_is_no_part_of_what_is_left(
    aged: Aged, capsys: pytest.CaptureFixture[str]
) -> None:
    draft = aged.home / "features" / ".draft-dead-1"
    draft.mkdir()
    (draft / "shard").write_bytes(bytes(10 * SIZE))
    quota = f"{sum(file.bytes for file in files_under(aged.home)) - SIZE}B"
    cli = Cli(aged.home, capsys)
    dry, done = (cli.json("gc", "--quota", quota, *how) for how in (["--dry-run"], []))
    assert not draft.exists()
    assert done["bytes_left"] == sum(file.bytes for file in files_under(aged.home))
    assert (dry["bytes_left"], done["over_quota"]) == (done["bytes_left"], False)


def test_a_quota_is_not_met_by_what_could_not_be_removed(
    aged: Aged, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cli, name = Cli(aged.home, capsys), f"features/{aged.store.store_id}"
    kept = [f"--keep={ref}" for ref in (aged.months, aged.derived, aged.ran, aged.future)]
    total = sum(file.bytes for file in files_under(aged.home))
    asked = ("gc", "--quota", f"{total - 1}B", *kept)
    assert cli.json(*asked, "--dry-run")["removed"].keys() == {name}
    # Who begins to write only after it was listed.
    monkeypatch.setattr(garbage, "writer_of", lambda store: None)
    with writing(aged.store):
        done = json.loads(cli(*asked, "--json", code=1))
        said = " ".join(cli(*asked, code=1).split())
    assert done["removed"] == {}
    assert done["over_quota"]
    assert done["bytes_left"] == sum(file.bytes for file in files_under(aged.home))
    assert f"removed 0 (0 B); kept {done['kept']}" in said
    assert "is named with --keep, is being written, or" in said
