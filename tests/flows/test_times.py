"""Estimated times, recomputed by hand from recorded seconds."""

from pathlib import Path
from typing import Any

import pytest

from permafrost.flows.times import (
    EarlierTimes,
    Estimate,
    Took,
    Work,
    device_of,
    duration,
    estimate,
    stage_time,
    work_of,
)
from permafrost.storage.artifacts import ArtifactSpec
from tests.flows.recorded import Recorded, place, spec

CORPUS = f"corpus/{'c' * 32}"
SEEN = {CORPUS: {"n_texts": 90, "n_examples": 100}}


def took(seconds: float, amount: float | None = None, task: str = "CoLA") -> Took:
    work = None if amount is None else Work(amount, "examples x epochs")
    return Took(f"fit/{seconds}", seconds, work, task)


def test_time_goes_with_work() -> None:
    """10 s for 500 and 30 s for 1,500 examples x epochs are 0.02 s each; 2,000 of them take 40 s."""
    found = estimate([took(10, 500), took(30, 1500)], Work(2000, "examples x epochs"), "CoLA")
    assert found == Estimate(40.0, ("fit/10", "fit/30"), "examples x epochs")


def test_the_same_task_counts_before_others() -> None:
    earlier = [took(10, 500), took(99, 500, "SST-2")]
    found = estimate(earlier, Work(1000, "examples x epochs"), "CoLA")
    assert found is not None
    assert found.seconds == 20
    elsewhere = estimate(earlier, Work(1000, "examples x epochs"), "STS-B")
    assert elsewhere is not None
    assert elsewhere.seconds == 109


def test_without_a_record_of_work_it_is_the_mean() -> None:
    assert estimate([took(10), took(20)], Work(2000, "examples"), "CoLA") == Estimate(
        15.0, ("fit/10", "fit/20"), ""
    )
    assert estimate([took(10, 500)], None, "CoLA") == Estimate(10.0, ("fit/10",), "")
    assert estimate([], Work(1, "examples"), "CoLA") is None


@pytest.mark.parametrize(
    ("stage", "config", "work"),
    [
        ("fit", {"optim": {"max_epochs": 5, "max_steps": None, "batch_size": 8}}, 500),
        ("fit", {"optim": {"max_epochs": 5, "max_steps": 20, "batch_size": 8}}, 160),
        ("fit", {"max_epochs": 3}, 300),
        ("finetune", {"finetune": {"optim": {"max_epochs": 2}}}, 200),
        (
            "finetune",
            {"finetune": {"optim": {"max_epochs": None, "max_steps": 4, "batch_size": 8}}},
            32,
        ),
        ("score", {}, 100),
        ("embed", {}, 90),
        ("evaluate", {}, None),
    ],
)
def test_work_follows_from_config_and_corpus(
    stage: str, config: dict[str, Any], work: float | None
) -> None:
    found = work_of(spec(stage, config, CORPUS), SEEN.get)
    assert (None if found is None else found.amount) == work
    assert work_of(spec(stage, config), SEEN.get) is None


def trained(epochs: int, seed: int) -> ArtifactSpec:
    return spec("fit", {"optim": {"max_epochs": epochs}, "seed": seed}, CORPUS)


def test_only_the_same_method_on_the_same_kind_of_device_counts(tmp_path: Path) -> None:
    home = Recorded(tmp_path)
    home.publish(trained(1, 0), place(seed=0), device="cpu")
    home.publish(trained(1, 1), place(seed=1), device="cuda")
    home.publish(trained(1, 2), place("mean"), device="cpu")
    home.publish(trained(1, 3), place(seed=3), torch="2.13.0+cpu")
    home.publish(trained(1, 4), place(seed=4), torch="2.13.0+cu128")
    earlier = EarlierTimes(home.explainer.earlier, SEEN.get)
    found = earlier.of(trained(5, 9), place(seed=9), "cpu")
    assert [t.ref for t in found] == [str(trained(1, s).ref) for s in (0, 3)]
    assert all(t.work == Work(100, "examples x epochs") for t in found)
    assert earlier.of(trained(5, 9), place("new"), "cpu") == []
    unknown = home.artifacts.manifest(trained(1, 4).ref)
    assert device_of(unknown) is None


def test_extractions_are_compared_by_tokens_and_backbone(tmp_path: Path) -> None:
    home = Recorded(tmp_path)

    def extraction(weights: str, max_length: int) -> ArtifactSpec:
        identity = {"weights_digest": weights, "compute_dtype": "float32", "max_length": max_length}
        return spec("extract", {"store": identity, "arrays": []})

    for n, tokens in enumerate((500, 0, 1500)):
        home.publish(
            extraction("w", n), place(""), summary={"n_tokens_computed": tokens}, device="cpu"
        )
    home.publish(extraction("other", 9), place(""), summary={"n_tokens_computed": 9}, device="cpu")
    earlier = EarlierTimes(home.explainer.earlier, SEEN.get)
    # Of a backbone that is tuned from the one with the digest `w`.
    found = earlier.of(extraction("w finetune/0", 7), place("tuned"), "cpu")
    assert [t.work for t in found] == [Work(500, "tokens"), Work(1500, "tokens")]


def test_a_stage_says_what_it_is_taken_from_and_what_is_left_out() -> None:
    known = Estimate(40.0, ("fit/a", "fit/b"), "examples x epochs")
    time = stage_time("fit", "cpu", [known, known, None])
    assert (time.seconds, time.n_unknown, time.n_run) == (80.0, 1, 3)
    assert time.basis == "2 earlier on cpu by examples x epochs"
    assert str(time) == "about 80 s and 1 without an estimate"
    nothing = stage_time("fit", "cpu", [None])
    assert (nothing.seconds, str(nothing), nothing.basis) == (None, "no estimate yet", "")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 s"),
        (0.01, "0.1 s"),
        (3.14, "3.1 s"),
        (42, "42 s"),
        (600, "10 min"),
        (36000, "10.0 h"),
    ],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
