"""What the benchmark of engines runs, and what it hears from a run."""

from argparse import Namespace

from benchmarks.engines import STANDS, experiment
from permafrost.flows.experiment_files.experiment_file import load_experiment


def test_it_has_the_fits_and_the_texts_that_were_asked_for() -> None:
    asked = Namespace(segments=52, segment_tokens=4096, fits=72, train=240, epochs=2)
    made = load_experiment(experiment(asked))
    assert len(made.cells) == 72
    n_texts = [t.n_train + t.n_dev + t.n_test for t in made.tasks.values()]  # pyright: ignore[reportAttributeAccessIssue]
    # 88 tokens a text, or a little less.
    assert n_texts == [52 * 4096 // 88 // 2] * 2


def test_it_hears_when_the_cluster_stands() -> None:
    found = STANDS.search(
        "after 7.3 s: 2 Dask workers of 1 thread each; dashboard http://127.0.0.1:1/status"
    )
    assert found is not None
    assert found[1] == "7.3"
