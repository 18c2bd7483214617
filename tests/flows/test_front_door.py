"""`import permafrost`: light, and each function does what the command line does."""

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file

import permafrost
from permafrost.flows.home import Home
from permafrost.stages.embed.config import EmbedConfig
from permafrost.stages.encoder import load_encoder
from permafrost.stages.encoder.load import method_encoder
from permafrost.stages.extraction.files import BackboneConfig
from permafrost.stages.heads import GlotHead
from permafrost.storage import errors
from tests.flows.conftest import tiny_experiment
from tests.flows.frozen_home import unpack
from tests.flows.test_cli import Cli
from tests.stages.encoder import fitted_homes
from tests.stages.encoder.fitted_homes import TEXTS, home_with_features
from tests.stages.extraction.tiny_models import save_model
from tests.storage.object_server import ObjectServer

HEAVY = ("torch", "transformers", "prefect", "pyarrow", "numpy", "pydantic", "distributed")
NEW = ["a river under the night sun", *TEXTS, "snow melts"]


@pytest.fixture(scope="module")
def made(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> fitted_homes.Home:
    """A home with TEXTS at hidden/2, and heads that tests add."""
    return home_with_features(tmp_path_factory.mktemp("made"), tiny_bert, "hidden=2@tokens")


@pytest.fixture(scope="module")
def head(made: fitted_homes.Home) -> str:
    return made.head(GlotHead(hidden=8, tau=0.3), "hidden/2", "similarity")


def test_importing_it_loads_nothing_heavy() -> None:
    code = f"""
import sys, permafrost
from permafrost import InputError, run, open
assert issubclass(permafrost.NotFoundError, InputError)
loaded = [name for name in {HEAVY!r} if name in sys.modules]
assert not loaded, loaded
permafrost.open("nowhere").runs()
loaded = [name for name in ("torch", "transformers", "prefect") if name in sys.modules]
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.deep
def test_dask_is_for_runs_on_dask_only() -> None:
    """Nor do libraries import it; that we do not is in test_late_imports.py."""
    code = """
import sys, permafrost.flows.cli.app, permafrost.flows.front
assert "distributed" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_name_that_is_offered_is_there() -> None:
    assert dir(permafrost) == permafrost.__all__
    for name in permafrost.__all__:
        assert getattr(permafrost, name).__doc__, name
    assert permafrost.InputError is errors.InputError
    own = {name for name, found in vars(errors).items() if isinstance(found, type)}
    assert own <= set(permafrost.__all__), "every error can be caught by a name of the front door"
    with pytest.raises(AttributeError, match="nothing"):
        _ = permafrost.nothing  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("form", [str, Path, lambda p: p.as_uri(), Home, lambda p: f"~/{p.name}"])
def test_a_home_is_opened_by_any_name(
    made: fitted_homes.Home, monkeypatch: pytest.MonkeyPatch, form: Any
) -> None:
    monkeypatch.setenv("HOME", str(made.path.parent))
    monkeypatch.chdir(made.path.parent)
    home = permafrost.open(form(made.path))
    assert home.folder == made.path
    assert [s.store_id for s in home.stores()] == [made.store.store_id]
    assert pickle.loads(pickle.dumps(permafrost.open(made.path.name))).folder == made.path


def test_the_home_is_that_of_the_environment_unless_one_is_named(
    made: fitted_homes.Home, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for none in ("", None):
        if none is None:
            monkeypatch.delenv("PERMAFROST_HOME")
        else:
            monkeypatch.setenv("PERMAFROST_HOME", none)
        assert permafrost.open().folder == tmp_path / ".permafrost"
    monkeypatch.setenv("PERMAFROST_HOME", str(made.path))
    assert permafrost.open().folder == made.path
    assert permafrost.open("named").folder == tmp_path / "named"
    (tmp_path / "file").touch()
    monkeypatch.setenv("PERMAFROST_HOME", "file")
    fields = tiny_experiment(tiny_bert)
    for opens in (permafrost.open, lambda: permafrost.plan(fields), lambda: permafrost.run(fields)):
        with pytest.raises(permafrost.InputError, match="the home file is a file"):
            opens()


def test_the_results_of_the_latest_run(tmp_path: Path) -> None:
    home = permafrost.open(unpack(tmp_path) / "home")
    (run,) = home.runs()
    assert home.report(run.experiment).read_text().startswith("<!DOCTYPE html>")
    rows = home.results("frozen")["rows"]
    assert {"first", "glot gin", "siamese"} <= {row["method"] for row in rows}
    with pytest.raises(permafrost.NotFoundError, match=r"no complete run of 'other'; .* frozen"):
        home.results("other")


def test_the_head_of_a_method_is_the_one_that_dev_chose(
    tmp_path: Path, finished_home: Path
) -> None:
    home = permafrost.open(finished_home)
    of_stage = {stage: home.artifacts.all(stage) for stage in ("choose", "fit")}
    made = {
        (stage, *(origin[field] for field in ("name", "task", "seed"))): manifest.ref
        for stage, manifests in of_stage.items()
        for manifest in manifests
        for origin in manifest.provenance["origins"]
    }
    head = home.head("tiny", "GLOT", task="ratio 0.5", seed=1)
    assert head == made["choose", "GLOT", "ratio 0.5", 1]
    assert home.encoder(head).encode(["snow"]).shape[0] == 1
    assert (
        home.head("tiny", "mean", task="ratio 0.2", seed=0) == made["fit", "mean", "ratio 0.2", 0]
    )
    with pytest.raises(
        permafrost.InputError, match=r"several tasks; give task= one of 'ratio 0\.2', "
    ):
        home.head("tiny", "GLOT")
    with pytest.raises(permafrost.InputError, match="several seeds; give seed= one of 0, 1"):
        home.head("tiny", "GLOT", task="ratio 0.5")
    for wrong, says in (
        ({"method": "glot"}, "no method 'glot'; there are mean, GLOT, shuffled, length, words"),
        ({"method": "GLOT", "task": "x"}, "no task 'x' of 'GLOT'; there are ratio 0.2, ratio 0.5"),
        ({"method": "GLOT", "seed": 7}, "no seed 7 of 'GLOT'; there are 0, 1"),
        (
            {"method": "GLOT", "task": "ratio 0.5", "seed": "1"},
            "seed is '1', of type str; give a wh",
        ),
        ({"method": "GLOT", "seed": True}, "seed is True, of type bool; give a whole number"),
    ):
        with pytest.raises(permafrost.InputError, match=says):
            home.head("tiny", **wrong)
    assert home.head("tiny", "GLOT", task="ratio 0.5", seed=np.int64(1)) == head  # type: ignore[arg-type]
    with pytest.raises(
        permafrost.NotFoundError, match="no complete run of 'other'; there are tiny"
    ):
        home.head("other", "GLOT")


def test_readers_of_stored_features(made: fitted_homes.Home, tiny_bert: Path) -> None:
    home = permafrost.open(made.path)
    _, batch = next(home.reader("hidden/2", [TEXTS[3], TEXTS[0]]).in_order(2))
    assert batch.data.shape == (batch.offsets[-1], 32)
    with pytest.raises(permafrost.NotFoundError, match=r"1 of 1 texts .*: text 0 'never stored'"):
        home.reader("hidden/2", ["never stored"])
    with pytest.raises(permafrost.InputError, match=r"write \[text\]"):
        home.reader("hidden/2", "ice")
    with pytest.raises(permafrost.InputError, match="text 1 is 3, of type int"):
        home.reader("hidden/2", [TEXTS[0], 3])  # type: ignore[list-item]
    for array in (3, None):
        with pytest.raises(permafrost.InputError, match=f"array is {array}, of type .*'hidden/6'"):
            home.reader(array, TEXTS)  # type: ignore[arg-type]
    with pytest.raises(permafrost.NotFoundError, match=r"hidden/1 is missing .*; extract it first"):
        home.reader("hidden/1", TEXTS)
    with pytest.raises(
        permafrost.NotFoundError,
        match=r"no hidden/9 in .* backbone has 3 blocks; hidden/3 is the last that can be extracted",
    ):
        home.reader("hidden/9", TEXTS)
    for wrong in ("hiddn/9", "span/9", "token_ids/7", "hidden/x"):
        says = (
            f"'{wrong}' is not a captured array; names are hidden/K, .* every store has token_ids, "
        )
        with pytest.raises(permafrost.InputError, match=says):
            home.reader(wrong, TEXTS)
    given = home.reader("hidden/2", (text for text in TEXTS[:3]), memory_bytes=1)
    _, again = next(pickle.loads(pickle.dumps(given)).in_order(3))
    assert np.array_equal(again.data, next(given.in_order(3))[1].data)
    column = pd.Series([*TEXTS[:2], "never stored"], index=[2, 1, 0])
    with pytest.raises(permafrost.NotFoundError, match=r"1 of 3 texts .*: text 2 'never stored'"):
        home.reader("hidden/2", column)
    for wrong in ({*TEXTS}, column.to_frame(), None, []):
        with pytest.raises(permafrost.InputError, match=r"list of|at least one"):
            home.reader("hidden/2", wrong)  # type: ignore[arg-type]
    for wrong in ("spans", None):
        with pytest.raises(permafrost.InputError, match="expected 'span' or 'all'"):
            home.reader("hidden/2", TEXTS[:2], tokens=wrong)  # type: ignore[arg-type]
    for budget in (0, 1 << 30):
        reader = home.reader("hidden/2", TEXTS[:2], memory_bytes=budget)
        with pytest.raises(permafrost.InputError, match="batch_size is 0, expected 1 or more"):
            next(reader.in_order(0))
        with pytest.raises(permafrost.InputError, match="batch_size is -4, expected 1 or more"):
            next(reader.shuffled(-4, 0, 0))


def test_a_home_stays_where_it_was_opened(
    made: fitted_homes.Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made.path.parent)
    home = permafrost.open(made.path.name)
    reader = home.reader("hidden/2", TEXTS[:2], memory_bytes=1)
    monkeypatch.chdir(tmp_path)
    assert home.stores()
    assert next(reader.in_order(2))[1].data.size


def test_a_reader_finds_its_store_among_several(tiny_bert: Path, tmp_path: Path) -> None:
    first = home_with_features(tmp_path, tiny_bert, "hidden=2@tokens", texts=TEXTS[:2]).store
    second = home_with_features(
        tmp_path, tiny_bert, "hidden=1-2@tokens", texts=TEXTS[1:], store_dtype="float32"
    ).store
    home = permafrost.open(tmp_path)
    assert home.reader("hidden/2", TEXTS[:1]).n_texts == 1
    assert home.reader("hidden/1", TEXTS[1:2]).n_texts == 1
    ids = f"{first.store_id[:12]}|{second.store_id[:12]}"
    with pytest.raises(permafrost.InputError, match=rf"store= one of ({ids}), ({ids})"):
        home.reader("hidden/2", TEXTS[1:2])
    one = home.reader("hidden/2", TEXTS[1:2], store=second.store_id[:8])
    assert one.array == "hidden/2"
    with pytest.raises(permafrost.NotFoundError, match=r"none of 2 .* lacks it of 1, such as '"):
        home.reader("hidden/2", TEXTS)


def test_encoding_by_a_method_is_the_same_with_a_home_and_without(
    made: fitted_homes.Home, tiny_bert: Path, tmp_path: Path
) -> None:
    how: dict[str, Any] = {"backbone": {"source": tiny_bert}, "device": "cpu"}
    alone = permafrost.encode(NEW, method="mean", **how)
    method = {"method": "mean", "layers": "last"}
    assert alone.shape == (len(NEW), 32)
    assert alone.dtype == np.float32
    how["device"] = torch.device("cpu")
    cached = permafrost.encode(iter(NEW), method=method, home=tmp_path / "new", **how)
    np.testing.assert_allclose(cached, alone, rtol=2e-5, atol=2e-6)
    (store,) = permafrost.open(tmp_path / "new").stores()
    assert store.arrays() == ["hidden/3", "span", "token_ids"], "kept for the next time"
    how["device"] = None
    echoed = permafrost.encode(NEW, method="mean", recipe="echo", **how)
    assert not np.allclose(echoed, alone)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone with activations beyond float16."""
    folder = save_model("llama", tmp_path_factory.mktemp("large"))
    weights = load_file(folder / "model.safetensors")
    weights["embed_tokens.weight"] *= 1e7
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("dtype", "store_dtype"), [("bfloat16", None), (None, "float32"), ("bfloat16", "float32")]
)
def test_features_are_kept_in_the_dtype_that_the_command_line_keeps_them_in(
    large: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    dtype: str | None,
    store_dtype: str | None,
) -> None:
    method = {"method": "mean", "layers": "1"}
    given: dict[str, Any] = {"source": large} | ({"dtype": dtype} if dtype else {})
    how: dict[str, Any] = {"backbone": given, "method": method, "device": "cpu"}
    with pytest.raises(permafrost.OverflowRangeError, match="float16"):
        permafrost.encode(TEXTS, **how, store_dtype="float16")
    how["store_dtype"] = store_dtype
    alone = permafrost.encode(TEXTS, **how)
    assert np.abs(alone).max() > np.finfo(np.float16).max
    cached = permafrost.encode(TEXTS, **how, home=tmp_path / "home")
    # Other batches may round a feature one step of bfloat16 away.
    np.testing.assert_allclose(cached, alone, rtol=0, atol=2**-7 * np.abs(alone).max())
    (store,) = permafrost.open(tmp_path / "home").stores()
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    flags = [] if dtype is None else ["--dtype", dtype]
    flags += [] if store_dtype is None else ["--store-dtype", store_dtype]
    texts, out = str(tmp_path / "texts.txt"), str(tmp_path / "out.parquet")
    told = Cli(tmp_path / "other", capsys).json(
        *("embed", texts, "-o", out, "--backbone", str(large), "--layers", "1", *flags)
    )
    assert told["store_ids"] == [store.store_id]


def test_a_home_on_an_object_store_is_used_by_its_url(
    server: ObjectServer, tiny_bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://bucket/team/home"
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "first"))
    how: dict[str, Any] = {"backbone": tiny_bert, "method": "mean", "device": "cpu"}
    vectors = permafrost.encode(TEXTS, home=url, **how)
    assert any("/features/" in key for key in server.objects)
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "second"))
    home = permafrost.open(url)
    assert (home.url, repr(home)) == (url, f"permafrost.open('{url}')")
    assert home.folder.is_relative_to(tmp_path / "second")
    _, batch = next(home.reader("hidden/3", TEXTS).in_order(len(TEXTS)))
    means = [batch[i].mean(0) for i in range(len(TEXTS))]
    np.testing.assert_allclose(means, vectors, rtol=2e-5, atol=2e-6)
    assert pickle.loads(pickle.dumps(home)).folder == home.folder


def test_encoding_by_a_head_is_its_encoder(made: fitted_homes.Home, head: str) -> None:
    home = permafrost.open(made.path)
    vectors = permafrost.encode(NEW, head=head[:12], home=home, device="cpu")
    encoder = home.encoder(home.artifacts.refs("fit")[-1], device="cpu")
    np.testing.assert_allclose(encoder.encode(NEW), vectors, rtol=2e-5, atol=2e-6)


def test_what_a_cell_ends_with_is_shown_in_a_line(
    made: fitted_homes.Home, head: str, tiny_bert: Path
) -> None:
    home = permafrost.open(made.path)
    assert repr(home.encoder(head)) == f"Encoder({head[:12]}, glot of hidden/2, width 48)"
    method = method_encoder(EmbedConfig(layers="1-2"), BackboneConfig(source=str(tiny_bert)))
    assert repr(method) == f"Encoder({tiny_bert}, mean of 2 arrays, width 32)"


@pytest.mark.parametrize("device", [torch.device("cpu"), None])
def test_a_device_of_torch_is_taken(made: fitted_homes.Home, head: str, device: Any) -> None:
    encoder = load_encoder(made.path, head, device=device)
    found = permafrost.predict(TEXTS, NEW[:4], head=head, home=made.path, device=device)
    told = encoder.predict(TEXTS, NEW[:4])
    assert isinstance(found, permafrost.PredictedScores)
    assert isinstance(told, permafrost.PredictedScores)
    np.testing.assert_allclose(found.scores, told.scores, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "neither method nor head"),
        ({"method": "mean"}, "add backbone="),
        ({"method": "mean", "head": "fit/0"}, "both method and head"),
        ({"head": "fit/0"}, "add home="),
        ({"head": "fit/0", "home": "nowhere"}, "no artifact begins with 'fit/0'"),
        ({"head": "fit/0", "home": "nowhere", "recipe": "echo"}, "leave recipe out"),
        ({"head": "fit/0", "home": "nowhere", "store_dtype": "float32"}, "leave store_dtype out"),
        (
            {"method": "mean", "backbone": "x", "store_dtype": "int8"},
            "there are float32, float16, ",
        ),
        ({"head": "fit/0", "home": "nowhere", "backbone": {"source": "x"}}, "its own settings"),
        (
            {"method": "men", "backbone": "x"},
            "method: method is 'men', which is unknown; the nearest is 'mean'",
        ),
        (
            {"method": {"method": "mean", "tau": 1}, "backbone": "x"},
            "method: tau: there is no such field",
        ),
        ({"method": {"method": {1}}, "backbone": "x"}, "method.method is .*, of type set"),
        (
            {"method": "mean", "backbone": {"sauce": "x"}},
            "backbone: source: this field has to be given",
        ),
        ({"method": {"layers": "auto"}, "backbone": "x", "home": "nowhere"}, "nothing was chosen"),
        ({"method": {"whitening": {}}, "backbone": "x", "home": "nowhere"}, "leave it out"),
        ({"method": "mean", "backbone": "x", "recipe": "ecco"}, "no recipe 'ecco'"),
    ],
)
def test_what_does_not_go_together_is_refused(
    given: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(permafrost.InputError, match=says):
        permafrost.encode(["ice"], **given)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("ice", r"write \[text\]"),
        (["ice", None], "text 1 is None"),
        (["ice", "a\ud800"], "whose character 1 is half of a surrogate pair"),
        ([], "no texts to encode"),
        # Python lists the names of their columns.
        ({"sentence": ["ice"]}, r"a dict with columns.*list\(data\['sentence'\]\)"),
        (pd.DataFrame({"sentence": ["ice"]}), r"a DataFrame with columns.*\['sentence'\]"),
        (pa.table({"sentence": ["ice"]}), r"a Table with columns.*\['sentence'\]"),
        (Dataset.from_dict({"sentence": ["ice"]}), r"a Dataset with columns.*\['sentence'\]"),
        ({"ice", "snow"}, "a set, which has no order"),
        (None, "given None, of type NoneType, where a list of texts belongs"),
    ],
)
def test_texts_are_a_list_of_strings(texts: Any, says: str) -> None:
    with pytest.raises(permafrost.InputError, match=says):
        permafrost.encode(texts, backbone="x", method="mean")


@pytest.mark.parametrize(
    ("home", "says"),
    [
        (3, "of type int"),
        ("", "is empty"),
        (Path(__file__), "is a file"),
        ("ftp://host/home", "unknown kind of object store"),
        ("file://host/home", "another machine"),
        ("~nobody-of-this-name/home", "'./~nobody-of-this-name/home'"),
    ],
)
def test_what_is_no_home_is_refused(home: Any, says: str) -> None:
    with pytest.raises(permafrost.InputError, match=says):
        permafrost.open(home)
