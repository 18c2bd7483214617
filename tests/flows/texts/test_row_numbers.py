"""A text that cannot be read, or has a token that the model has not, is named as its user knows it."""

import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tokenizers import normalizers
from transformers import AutoConfig, AutoTokenizer

import permafrost
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.texts.extraction import extract_texts
from permafrost.stages.extraction import planning
from permafrost.stages.extraction.backbone import BackboneConfig
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import ExtractReport
from permafrost.stages.extraction.recipes.inputs import UnreadableTextError, numbered_as
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime
from permafrost.storage.errors import InputError
from permafrost.storage.progress import SilentProgress
from tests.flows.looked import Looked
from tests.stages.extraction.tiny_models import save_model

BAD = "zero"
"""The tokenizer drops it, and nothing is left."""
Run = Callable[[list[str]], list[ExtractReport]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama whose tokenizer drops a word, and has one that the model does not know."""
    folder = save_model("llama", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(BAD, "")
    n_known = AutoConfig.from_pretrained(folder).vocab_size
    tokenizer.add_tokens([f"<more{i}>" for i in range(n_known - len(tokenizer))])
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> Run:
    config = ExtractConfig(
        backbone=BackboneConfig(source=str(folder)), capture=parse_capture("hidden=1@mean")
    )
    runtime = ExtractRuntime(device="cpu", block_texts=3)
    return lambda texts: extract_texts(
        config, texts, tmp_path / "home", runtime, lambda _: SilentProgress()
    )


def test_it_has_the_number_of_its_row_not_its_place_among_new_ones(run: Run) -> None:
    run(["ice", "snow"])
    with pytest.raises(InputError, match=r"^text 2 \('zero'\) gives no token of its own"):
        run(["ice", "snow", BAD, "cold"])
    with pytest.raises(InputError, match=r"^text 7 \('zero'\)"):
        run(["ice", "cold", "ice", "ice", "cold", "night", "sun", BAD, "wind", BAD])


def test_of_many_texts_a_sample_is_looked_at_first(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "SAMPLE_TEXTS", 4)
    texts = [f"snow {i}" for i in range(12)]
    for at in (0, 5, 11):
        with pytest.raises(InputError, match=rf"^text {at} \('zero'\)"):
            run([*texts[:at], BAD, *texts[at + 1 :]])


def test_of_a_task_it_has_the_row_of_its_split(folder: Path, tmp_path: Path) -> None:
    lines = [f"snow {i},{i % 2}" for i in range(9)]
    (tmp_path / "a.csv").write_text("\n".join(["text,label", *lines, f"{BAD},1", ""]))
    task = {"kind": "files", "files": {"train": str(tmp_path / "a.csv")}}
    carved = {name: {"kind": "from_train", "fraction": 0.2} for name in ("dev", "test")}
    experiment = {
        "name": "a",
        "backbone": {"source": str(folder)},
        "capture": "hidden=1@tokens",
        "tasks": {"t": {**task, **carved, "task": {"kind": "classification"}}},
        "methods": {"m": {"kind": "head", "head": {"kind": "mean"}, "layer": "hidden/1"}},
    }
    says = r"^row 10 of train \('zero'\) gives no token of its own"
    with pytest.raises(InputError, match=says):
        Looked(load_experiment(experiment), tmp_path / "home").plan()


def test_in_python_it_has_the_number_of_the_list(folder: Path) -> None:
    encode = partial(permafrost.encode, backbone=str(folder), method="mean", device="cpu")
    with pytest.raises(InputError, match=r"^text 3 \('zero'\)"):
        encode(["ice", "ice", "snow", BAD])


def test_a_token_that_the_model_does_not_have_is_named_with_its_text(
    run: Run, folder: Path
) -> None:
    said = r"^text 1 \('the ice <extra> melts'\) has the token '<extra>', .* to the tokenizer alone"
    with pytest.raises(InputError, match=said):
        run(["ice", "the ice <extra> melts"])
    with pytest.raises(InputError, match=r"^text 0 .* has the token '<extra>'"):
        permafrost.encode(["the ice <extra>"], backbone=str(folder), method="mean", device="cpu")
    assert run(["ice", "the ice melts"])[0].n_tokens


def test_the_error_goes_to_other_processes_and_back() -> None:
    error = UnreadableTextError(3, "no room for ", "; shorten it")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.number) == ("no room for text 3; shorten it", 3)
    with (
        pytest.raises(UnreadableTextError, match="no room for text 9; shorten it"),
        numbered_as(range(6, 12)),
    ):
        raise error
