"""Two sets of results against each other: in pairs where they can be, by seeds otherwise."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import stats

from permafrost.stages.fit import evaluate
from permafrost.stages.metrics.bootstrap import BootstrapConfig, Difference, paired_bootstrap
from permafrost.stages.metrics.comparison import (
    Comparison,
    NamedAnswers,
    ScoredMethod,
    compare,
    named_answers,
    same_test_set,
)
from permafrost.stages.metrics.identified import identified
from permafrost.stages.metrics.predictions import PREDICTIONS, predictions_table
from permafrost.storage.errors import CorruptDataError, InputError

CONFIG = BootstrapConfig(n_resamples=400)
LABELS = (np.arange(300) % 2).astype(float)
DIGESTS = tuple(f"{i:064x}" for i in range(300))


def predictions(right: float, seed: int) -> np.ndarray:
    places = np.random.default_rng(seed).permutation(len(LABELS))
    return np.where(places < round(right * len(LABELS)), LABELS, 1 - LABELS)


def answered(given: np.ndarray, digests: tuple[str, ...] = DIGESTS) -> NamedAnswers:
    return NamedAnswers((digests,), LABELS, given)


def method(name: str, *given: np.ndarray, task: str = "t", **changes) -> ScoredMethod:
    facts = {
        "method": name,
        "task": task,
        "metric": "accuracy",
        "role": "method",
        "tests": tuple(evaluate("accuracy", LABELS, g) for g in given),
        "answers": tuple(map(answered, given)),
    }
    return ScoredMethod(**facts | changes)


def scores_only(*tests: float, **changes) -> ScoredMethod:
    return method("m", tests=tests, answers=(None,) * len(tests), **changes)


def one(a: ScoredMethod, b: ScoredMethod) -> Comparison:
    return compare([a], [b], CONFIG)


def test_shared_examples_are_compared_in_pairs():
    before, after = (
        [predictions(right, 9 * s + i) for i in range(2)] for s, right in ((0, 0.7), (1, 0.85))
    )
    found = one(method("m", *before), method("m", *after, predictions(0.86, 50)))
    (change,) = found.changes
    expected = paired_bootstrap(
        "accuracy",
        LABELS,
        np.stack([*after, predictions(0.86, 50)]),
        np.stack(before),
        n_resamples=400,
    )
    assert change.tested is not None
    assert change.tested.p == expected.p
    assert (change.tested.low, change.tested.high) == pytest.approx((expected.low, expected.high))
    assert change.difference == pytest.approx(expected.value)
    assert (change.a, change.b) == pytest.approx((0.7, (0.85 + 0.85 + 0.86) / 3), abs=2e-3)
    assert (change.basis, change.n_examples, change.n_seeds) == ("examples", 300, (2, 3))
    assert change.verdict == "better"
    (back,) = one(method("m", *after), method("m", *before)).changes
    assert back.verdict == "worse"


def test_a_change_that_seeds_can_make_alone_is_within_noise():
    # 84.1 ± 16.9 against 93.8 ± 4.7 on the same 300 examples.
    before = [predictions(right, i) for i, right in enumerate((0.647, 0.926, 0.95))]
    after = [predictions(right, 9 + i) for i, right in enumerate((0.884, 0.958, 0.972))]
    (change,) = one(method("m", *before), method("m", *after)).changes
    assert (change.basis, change.verdict) == ("examples", "within noise")
    (change,) = one(method("m", before[0]), method("m", after[0])).changes
    assert change.verdict == "better", "with one seed the examples are all there is"


def test_a_small_change_is_within_noise_and_no_change_has_p_1():
    (change,) = one(method("m", predictions(0.8, 0)), method("m", predictions(0.81, 1))).changes
    assert change.verdict == "within noise"
    (same,) = one(method("m", predictions(0.8, 0)), method("m", predictions(0.8, 0))).changes
    assert same.tested is not None
    assert (same.tested.p, same.verdict) == (1.0, "within noise")


def test_fits_that_both_sides_have_do_not_differ():
    fits = [predictions(right, i) for i, right in enumerate((0.7, 0.8, 0.9))]
    (change,) = one(method("m", *fits), method("m", *fits)).changes
    assert change.tested == Difference(0.0, 0.0, 0.0, 1.0)
    (change,) = one(method("m", *fits), method("m", *fits[:2], predictions(0.9, 7))).changes
    assert change.tested is not None
    assert change.tested.low < 0 < change.tested.high


@pytest.mark.parametrize(
    "other",
    [
        NamedAnswers(((*DIGESTS[1:], "f" * 64),), LABELS, predictions(0.9, 1)),
        NamedAnswers((DIGESTS,), 1 - LABELS, predictions(0.9, 1)),
        NamedAnswers((DIGESTS, DIGESTS), LABELS, predictions(0.9, 1)),
    ],
    ids=["texts", "labels", "pairs"],
)
def test_of_other_examples_those_of_each_side_are_drawn(other: NamedAnswers):
    fits = [predictions(0.7, 0)]
    score = evaluate("accuracy", other.labels, other.predictions)
    b = method("m", answers=(other, other), tests=(score, score))
    (change,) = one(method("m", *fits), b).changes
    assert (change.basis, change.n_examples, change.n_of_each) == (
        "other examples",
        None,
        (300, 300),
    )
    assert change.tested is not None
    assert change.verdict == ("better" if score > 0.8 else "worse")
    error = np.hypot(*(np.sqrt(x * (1 - x) / 300) for x in (0.7, score)))
    assert change.tested.high - change.tested.low >= 3.5 * error
    # One of the seeds has no predictions: those of the others are no score of the method.
    lost = method("m", answers=(other, None), tests=(score, score))
    (change,) = one(method("m", *fits), lost).changes
    assert (change.basis, change.tested, change.verdict) == ("none", None, "cannot tell")


@pytest.mark.deep
def test_one_method_on_two_test_sets_is_not_said_to_change():
    """Its seeds differ less than the test sets do."""
    draw, told = np.random.default_rng(3), 0
    for trial in range(200):
        sides: list[ScoredMethod] = []
        for side in range(2):
            digests = tuple(f"{trial}{side}{i}" for i in range(300))
            right = draw.random(300) < 0.7
            given = [np.where(right ^ (draw.random(300) < 0.02), LABELS, 1 - LABELS) for _ in "abc"]
            sides.append(method("m", *given, answers=tuple(answered(g, digests) for g in given)))
        told += one(*sides).changes[0].verdict in ("better", "worse")
    # Of 200 trials that reject with probability 0.05, more than 22 have the binomial probability 2e-4.
    assert told <= 22


def test_answers_to_six_other_questions_prove_nothing():
    few = [
        NamedAnswers((DIGESTS[at : at + 3],), np.ones(3), np.full(3, r))
        for at, r in ((0, 1.0), (3, 0.0))
    ]
    a, b = (method("m", answers=(x,), tests=(float(x.predictions[0]),)) for x in few)
    (change,) = one(a, b).changes
    assert change.tested is not None
    assert (change.tested.p, change.n_of_each) == (0.1, (3, 3))


def test_without_predictions_the_seeds_are_compared_by_welch():
    before, after = (0.70, 0.72, 0.69), (0.80, 0.78)
    a = method("m", *(predictions(x, i) for i, x in enumerate(before)), tests=before)
    b = method("m", tests=after, answers=(None, None))
    (change,) = one(a, b).changes
    expected = stats.ttest_ind(after, before, equal_var=False)
    ends = expected.confidence_interval(0.95)
    assert change.tested is not None
    assert change.tested.p == pytest.approx(expected.pvalue)
    assert (change.tested.low, change.tested.high) == pytest.approx((ends.low, ends.high))
    assert (change.basis, change.n_examples, change.n_seeds) == ("seeds", None, (3, 2))
    assert change.verdict == ("better" if expected.pvalue < 0.05 else "within noise")


def test_predictions_that_do_not_give_the_scores_are_not_used():
    a, b = method("m", predictions(0.7, 0)), method("m", predictions(0.9, 1), tests=(0.8,))
    (change,) = one(a, b).changes
    assert (change.basis, change.verdict, change.tested) == ("none", "cannot tell", None)


def test_metrics_that_cannot_be_resampled_are_compared_by_seeds():
    a = scores_only(0.5, 0.6, metric="v_measure")
    b = scores_only(0.7, 0.8, metric="v_measure")
    assert one(a, b).changes[0].basis == "seeds"


def test_searches_are_compared_by_their_queries():
    rng = np.random.default_rng(0)
    gains = rng.uniform(size=len(LABELS))
    both = gains, np.clip(gains + rng.normal(0.02, 0.05, len(LABELS)), 0, 1)
    a, b = (method("m", g, metric="ndcg_at_10", tests=(float(g.mean()),)) for g in both)
    (change,) = one(a, b).changes
    assert (change.basis, change.n_examples) == ("examples", len(LABELS))
    expected = paired_bootstrap("mean", LABELS, both[1], both[0], n_resamples=400, seed=CONFIG.seed)
    assert change.tested is not None
    assert vars(change.tested) == pytest.approx(vars(expected))


LAST_BIT = np.nextafter(0.5, 1)


@pytest.mark.parametrize(
    "tests", [((0.5,), (0.6, 0.7)), ((0.5, 0.5), (0.6, 0.6)), ((0.5, LAST_BIT, 0.5), (0.6, 0.6))]
)
def test_one_seed_or_seeds_that_all_agree_tell_nothing(tests: tuple[tuple[float, ...], ...]):
    found = one(scores_only(*tests[0]), scores_only(*tests[1]))
    assert found.changes[0].verdict == "cannot tell"
    assert (found.n_tests, found.count("cannot tell")) == (0, 1)


def test_what_only_one_side_has_is_named():
    shared = predictions(0.8, 0)
    a = [method("m", shared), method("old", shared), method("m", shared, task="u")]
    b = [method("m", shared), method("m", shared, task="v")]
    found = compare(a, b, CONFIG)
    assert [(c.task, c.method) for c in found.changes] == [("t", "m")]
    assert found.only_a == (("t", "old"), ("u", "m"))
    assert found.only_b == (("v", "m"),)


def test_nothing_in_common_and_two_metrics_are_refused():
    a = method("m", predictions(0.8, 0))
    with pytest.raises(InputError, match="A has m on t, B has n on t"):
        one(a, method("n", predictions(0.8, 0)))
    with pytest.raises(InputError, match="m on t was scored by accuracy in A and by mcc in B"):
        one(a, scores_only(0.5, 0.6, metric="mcc"))


def written(
    folder: Path,
    sides: tuple[np.ndarray, ...],
    labels: np.ndarray,
    given: np.ndarray,
    digests: Sequence[str] = DIGESTS,
    classes: Sequence[str] = (),
) -> NamedAnswers:
    """Predictions as a scorer writes them, read back."""
    folder.mkdir(exist_ok=True)
    table = identified(predictions_table("test", sides, labels, given), None, digests, classes)
    pq.write_table(table, folder / PREDICTIONS)
    found = named_answers(folder)
    assert found is not None
    return found


def test_classes_are_matched_by_their_names_whatever_their_numbers(tmp_path: Path):
    """Another class in train moves the numbers of all that come behind it in the alphabet."""
    texts, given, better = (np.arange(300),), predictions(0.7, 0), predictions(0.85, 1)
    first = written(tmp_path, texts, LABELS, given, classes=["bad", "good"])
    moved, new = (np.where(v == 1, 2.0, v) for v in (LABELS, better))
    new[7] = 1.0
    second = written(tmp_path, texts, moved, new, classes=["bad", "fair", "good"])
    sides = [
        method("m", answers=(x,), tests=(evaluate("accuracy", x.labels, x.predictions),))
        for x in (first, second)
    ]
    (change,) = one(*sides).changes
    assert change.basis == "examples"
    better[7] = 2.0
    assert change.difference == pytest.approx(np.mean(better == LABELS) - np.mean(given == LABELS))
    alike = written(tmp_path, texts, LABELS, better, classes=["bad", "good", "fair"])
    wanted = method("m", answers=(alike,), tests=sides[1].tests)
    assert change == one(sides[0], wanted).changes[0]
    renamed = written(tmp_path, texts, LABELS, given, classes=["bad", "fine"])
    (other,) = one(sides[0], method("m", answers=(renamed,), tests=sides[0].tests)).changes
    assert other.basis == "other examples", "they have other labels"


def test_examples_are_matched_by_their_texts_whatever_their_numbers(tmp_path: Path):
    rng = np.random.default_rng(0)
    texts, others = rng.integers(0, 300, (2, 300))
    given = predictions(0.8, 0)
    first = written(tmp_path, (texts, others), LABELS, given)
    # The same texts under other numbers, the same examples in another order.
    renumbered, order = rng.permutation(300), rng.permutation(300)
    digests = np.empty(300, dtype=object)
    digests[renumbered] = DIGESTS
    sides = tuple(renumbered[side][order] for side in (texts, others))
    again = written(tmp_path, sides, LABELS[order], given[order], digests.tolist())
    assert first.same_examples(again)
    assert np.array_equal(first.predictions, again.predictions)
    swapped = written(tmp_path, sides[::-1], LABELS[order], given[order], digests.tolist())
    assert not first.same_examples(swapped)


def test_predictions_that_were_not_kept_or_do_not_name_their_texts_are_none(tmp_path: Path):
    assert named_answers(tmp_path) is None
    bare = predictions_table("test", (np.arange(300),), LABELS, LABELS)
    pq.write_table(bare, tmp_path / PREDICTIONS)
    assert named_answers(tmp_path) is None
    (tmp_path / PREDICTIONS).write_bytes(b"PAR1")
    with pytest.raises(CorruptDataError, match="holds no predictions"):
        named_answers(tmp_path)


def test_a_test_set_is_the_same_whatever_the_numbers_of_its_classes() -> None:
    given = predictions(0.7, 0)
    other = tuple(f"{i + 1:064x}" for i in range(300))
    assert same_test_set(method("a", given), method("b", predictions(0.9, 1))) is True
    changed = method("b", given, answers=(answered(given, other),))
    assert same_test_set(method("a", given), changed) is False
    assert same_test_set(method("a", given), scores_only(0.5)) is None
    named = NamedAnswers((DIGESTS,), LABELS, given, {"no": 0, "yes": 1})
    behind = NamedAnswers((DIGESTS,), LABELS + 1, given + 1, {"new": 0, "no": 1, "yes": 2})
    one_of_each = (method("a", given, answers=(a,)) for a in (named, behind))
    assert same_test_set(*one_of_each) is True
