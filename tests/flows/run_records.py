"""Run records made up for tests."""

from collections.abc import Sequence
from pathlib import Path

from permafrost.flows.records.history import (
    CellOf,
    Run,
    RunBegun,
    RunEnded,
    RunScore,
    UsedArtifact,
    begin,
    end,
    find_run,
    run_name,
)
from permafrost.storage.drafts import owner


def score(method: str = "m", test: float = 0.5, seed: int = 0, key: str = "score/none") -> RunScore:
    """A result on the task `t`."""
    return RunScore(
        method=method,
        task="t",
        seed=seed,
        role="method",
        metric="accuracy",
        dev=0.5,
        test=test,
        key=key,
    )


def begun(
    home: Path,
    experiment: str = "mine",
    refs: Sequence[str] = (),
    stores: Sequence[str] = (),
    config: dict[str, object] | None = None,
    process: str | None = None,
) -> RunBegun:
    """Begin a run of these artifacts, by this process unless another one is named."""
    used = tuple(
        UsedArtifact(
            ref=ref, label=f"fit m · t · seed {i}", of=(CellOf(method="m", task="t", seed=i),)
        )
        for i, ref in enumerate(refs)
    )
    return begin(
        home,
        experiment,
        lambda number: RunBegun(
            experiment=experiment,
            number=number,
            begun=f"2026-11-23T12:00:{number:02d}+00:00",
            overrides=("seeds=[0]",),
            config_digest="0" * 32,
            config=config or {"name": experiment},
            artifacts=used,
            stores=tuple(stores),
            engine="serial",
            workers=1,
            threads=(1,),
            process=process or owner(),
        ),
    )


def finished(
    home: Path,
    experiment: str = "mine",
    refs: Sequence[str] = (),
    stores: Sequence[str] = (),
    results: Sequence[RunScore] = (),
    config: dict[str, object] | None = None,
) -> Run:
    """A whole run."""
    one = begun(home, experiment, refs, stores, config)
    ended = RunEnded(
        experiment=experiment,
        number=one.number,
        ended=f"2026-11-23T12:01:{one.number:02d}+00:00",
        seconds=2.5,
        outcome="done",
        computed={"fit": 2},
        reused={"corpus": 1},
        stores=tuple(stores),
        results=tuple(results),
    )
    end(home, ended)
    return find_run(home, run_name(experiment, one.number))
