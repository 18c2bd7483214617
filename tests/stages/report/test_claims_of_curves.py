"""What came of claims about curves, whose values are compared as they are."""

import pyarrow as pa
import pytest

from permafrost.stages.metrics.bootstrap import BootstrapConfig
from permafrost.stages.report.claim_kinds import CurveClaim, CurvePart
from permafrost.stages.report.claims import claim_results, claims_summary
from permafrost.stages.report.curve_claims import Curves, read_curves
from permafrost.stages.report.layers import LAYER_CURVES, read_layer_curves
from permafrost.stages.report.tables import ResultsTable

EMPTY = ResultsTable((), ())
CURVES = Curves(
    {"theory": "block"},
    {
        ("theory", "HTP", "reviews", "even"): {"1": 0.2, "2": 0.6, "final": 0.5},
        ("theory", "plain", "reviews", "even"): {"1": 0.3, "2": 0.4, "final": 0.5},
        ("theory", "plain", "titles", "even"): {"1": 0.1},
        ("layers", "VA", "reviews", "recall@1"): {"1": 0.1, "2": 0.4},
    },
)


@pytest.mark.parametrize(
    ("claim", "outcomes"),
    [
        ({}, {"1": "does not hold", "2": "holds", "final": "does not hold"}),
        ({"at": ("2",)}, {"2": "holds"}),
        ({"lower": 0.5}, {"1": "does not hold", "2": "holds", "final": "does not hold"}),
        ({"lower": {"method": "HTP", "measure": "even", "at": "1"}, "at": ("2",)}, {"2": "holds"}),
        ({"lower": {"method": "TP", "measure": "even"}}, {"reviews": "not run"}),
        ({"at": ("9",)}, {"9": "not run"}),
    ],
)
def test_a_claim_about_curves_compares_values_as_they_are(claim: dict, outcomes: dict[str, str]):
    """Position by position on a task of both; equal values do not hold."""
    part = {"method": "HTP", "measure": "even"}
    whole = {"says": "c", "higher": part, "lower": {**part, "method": "plain"}} | claim
    said = CurveClaim(kind="curve", probe="theory", tasks=("reviews",), **whole)
    (result,) = claim_results([said], EMPTY, BootstrapConfig(), CURVES)
    found = {c.on.removeprefix("reviews, block "): c.outcome for c in result.comparisons}
    assert found == outcomes
    assert all(c.value is None and c.tested is None for c in result.comparisons)


def test_two_positions_of_one_curve_are_one_comparison():
    part = CurvePart(method="VA", measure="recall@1", at="2")
    said = CurveClaim(
        kind="curve",
        says="rises",
        probe="layers",
        higher=part,
        lower=part.model_copy(update={"at": "1"}),
    )
    (result,) = claim_results([said], EMPTY, BootstrapConfig(), CURVES)
    (one,) = result.comparisons
    assert (one.on, one.higher, one.lower) == (
        "reviews",
        "recall@1 of VA at 2",
        "recall@1 of VA at 1",
    )
    assert (one.outcome, claims_summary([result])[0]["comparisons"][0]["difference"]) == (
        "holds",
        None,
    )


def test_a_claim_is_not_answered_from_the_curve_of_another_probe():
    """Curves of kind `layers` are in one figure, whichever probe they are of."""
    names = [f.name for f in LAYER_CURVES]
    rows = [("of hidden", "m", "pairs · Spearman", 3, 0.5), ("other", "n", "pairs · mrr", 3, 0.5)]
    table = pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True)))
    curves = read_curves([], read_layer_curves(table))
    outcomes: dict[str, str] = {}
    for probe in ("of hidden", "other"):
        part = CurvePart(method="m", measure="Spearman")
        said = CurveClaim(kind="curve", says="c", probe=probe, higher=part, lower=0.1, at=("3",))
        (result,) = claim_results([said], EMPTY, BootstrapConfig(), curves)
        outcomes[probe] = result.outcome
    assert outcomes == {"of hidden": "holds", "other": "not run"}


def test_a_claim_about_curves_names_one():
    with pytest.raises(ValueError, match="both numbers; give a curve for one"):
        CurveClaim(kind="curve", says="c", probe="p", higher=1, lower=0)
