"""`drop`: what goes, what runs keep, and that an extraction brings it back."""

from pathlib import Path

import pytest

from permafrost.flows.disk.array_drops import drop_planned, plan_drop
from permafrost.storage.drafts import DRAFT_PREFIX
from permafrost.storage.features import dropping
from permafrost.storage.features.store import all_stores
from permafrost.storage.progress import SilentProgress
from tests.flows.run_records import begun
from tests.flows.test_cli import Cli, extraction


def test_drop_says_what_goes_and_keeps_what_runs_read(read: Cli) -> None:
    would = read.json("drop", "--arrays", "hidden/*, attention_rows/1", "--dry-run")
    assert [row["array"] for row in would["arrays"]] == ["attention_rows/1", "hidden/1"]
    assert would["read_by"] == [
        {"run": "mine", "what": "latest", "arrays": ["hidden/1"], "is_known": True}
    ]
    refused = read("drop", "--arrays", "hidden/*,attention_rows/1", code=2)
    assert "the latest run mine reads hidden/1 of the store" in refused
    assert "with --used" in refused
    (store,) = all_stores(read.home)
    assert "hidden/1" in store.arrays()
    before = read.json("du")["total"]
    said = read("drop", store.store_id[:8], "--arrays", "attention_rows/1")
    assert "dropped 1 array(s)" in said
    done = read.json("drop", "--arrays", "hidden/*", "--used")
    assert store.arrays() == ["pooled/hidden_mean/1", "span", "token_ids"]
    freed = done["bytes"] + would["arrays"][0]["bytes"]
    assert before - read.json("du")["total"] > freed, "receipts went, too"
    assert "every checksum" in read("verify")
    assert "there are pooled/hidden_mean/1" in read("drop", "--arrays", "hidden/9", code=2)
    assert "cannot be dropped" in read("drop", "--arrays", "span", code=2)
    assert "name the arrays" in read("drop", code=2)
    assert "the ID of the store is empty" in read("drop", "", "--arrays", "hidden/*", code=2)
    assert "a name to keep is empty" in read("gc", "--dry-run", "--keep", "", code=2)


def test_the_same_drop_after_a_kill_goes_on_with_the_rest(
    read: Cli, dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("drop", "--arrays", "hidden/1,attention_rows/1", "--used")
    (store,) = all_stores(read.home)

    def killed(doomed: Path) -> None:
        doomed.rename(doomed.with_name(f"{DRAFT_PREFIX}dropped-{dead}-0a1b2c3d"))
        raise KeyboardInterrupt

    plan = plan_drop(read.home, None, ["hidden/1", "attention_rows/1"])
    with monkeypatch.context() as inside:
        inside.setattr(dropping, "remove_any", killed)
        with pytest.raises(KeyboardInterrupt):
            drop_planned(plan, "used", SilentProgress())
    (shards,) = [
        a for a in ("hidden/1", "attention_rows/1") if (store.zarr_path / a / "c").exists()
    ]
    would = read.json(*asked, "--dry-run")
    assert [row["array"] for row in would["arrays"]] == [shards]
    assert would["left_behind"] > 0
    assert would["bytes"] == would["left_behind"] + would["arrays"][0]["bytes"]
    said = read(*asked)
    assert "dropped already" in said
    assert "are left of a drop that was killed" in said
    assert not list(store.root.glob(f"{DRAFT_PREFIX}*"))
    assert not (store.zarr_path / shards / "c").exists()
    again = read.json(*asked)
    assert again["dropped_already"] == ["attention_rows/1", "hidden/1"]
    assert (again["arrays"], again["bytes"], again["read_by"]) == ([], 0, [])


def test_an_extraction_fills_what_was_dropped_with_the_same_bytes(
    tiny_bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cli = Cli(tmp_path / "home", capsys)
    texts = tmp_path / "texts.txt"
    texts.write_text("one\ntwo words\n")
    asked = extraction(texts, tiny_bert)
    n_cells = cli.json(*asked)["n_cells_computed"]
    (store,) = all_stores(cli.home)
    before = store.shard_path(0, "hidden/1").read_bytes()
    cli("drop", "--arrays", "hidden/1,values/*")
    assert not store.shard_path(0, "hidden/1").exists()
    assert 0 < cli.json(*asked)["n_cells_computed"] < n_cells
    assert store.shard_path(0, "hidden/1").read_bytes() == before
    assert "every checksum" in cli("verify")


def test_drop_never_takes_what_a_run_that_is_going_on_may_read(read: Cli, dead: str) -> None:
    (store,) = all_stores(read.home)
    begun(read.home, "other", stores=[store.store_id], process=dead)
    asked = ("drop", "--arrays", "pooled/*", "--dry-run")
    assert "would drop" in read(*asked)
    of_latest = ("drop", "--arrays", "hidden/1", "--dry-run")
    assert "refused without --used, with which it would drop 1 array(s)" in read(*of_latest)
    assert "refused" not in read(*of_latest, "--used")
    begun(read.home, "now", stores=[store.store_id])
    expected = "refused while the run is going on. It would drop 1 array(s)"
    would = " ".join(read(*asked, "--used").split())
    assert expected in would
    assert "the running run now@1 may read pooled/hidden_mean/1" in would
    (reader,) = read.json(*asked)["read_by"]
    assert not reader["is_known"]
    expected = "going on; after it, --used is needed if a run reads them. It would drop 1 array(s)"
    assert expected in " ".join(read(*asked).split())
    said = read("drop", "--arrays", "pooled/*", "--used", code=1)
    assert "now@1 is going on and may read pooled/hidden_mean/1" in said
    assert "pooled/hidden_mean/1" in store.arrays()
