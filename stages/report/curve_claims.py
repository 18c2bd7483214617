"""What came of claims about curves of probes: of values as they are drawn, without a test."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from permafrost.stages.report.claim_kinds import CurveClaim, CurvePart
from permafrost.stages.report.layers import LayerCurve
from permafrost.stages.report.probes import Probe


@dataclass(frozen=True)
class Curves:
    """All curves of an experiment's probes: values by position, in order."""

    axes: Mapping[str, str]
    """What the positions are, by probe."""
    values: Mapping[tuple[str, str, str, str], Mapping[str, float]]
    """By probe, curve, task and measure."""

    def of(self, probe: str, part: CurvePart, task: str) -> Mapping[str, float]:
        """Values by position; none where there is no such curve."""
        return self.values.get((probe, part.method, task, part.measure), {})

    def tasks(self, claim: CurveClaim) -> tuple[str, ...]:
        """Those on which any of its curves was measured."""
        names = {(part.method, part.measure) for part in claim.parts}
        known = (
            task
            for probe, method, task, measure in self.values
            if probe == claim.probe and (method, measure) in names
        )
        return tuple(dict.fromkeys(known))


@dataclass(frozen=True)
class Held:
    """Two values that a claim puts in order."""

    on: str
    higher: str
    lower: str
    holds: bool | None
    """None where a curve is missing."""


NO_CURVES = Curves({}, {})


def read_curves(probes: Sequence[Probe], layers: Sequence[LayerCurve]) -> Curves:
    """All curves, by name."""
    values: dict[tuple[str, str, str, str], Mapping[str, float]] = {
        (probe.name, c.method, c.task, c.measure): dict(zip(c.at, c.values.tolist(), strict=True))
        for probe in probes
        for c in probe.curves
    }
    for curve in layers:
        task, _, score = curve.task.rpartition(" · ")
        by_layer = zip(map(str, curve.layers.tolist()), curve.scores.tolist(), strict=True)
        values[curve.probe, curve.method, task, score] = dict(by_layer)
    return Curves({probe.name: probe.axis for probe in probes}, values)


def held(claim: CurveClaim, curves: Curves) -> Iterator[Held]:
    """Every comparison of a claim, by task and position."""
    names = [
        side.called if isinstance(side, CurvePart) else f"{side:g}"
        for side in (claim.higher, claim.lower)
    ]
    axis = curves.axes.get(claim.probe, "layer")
    for task in claim.tasks or curves.tasks(claim) or ("",):
        sides = [_values(claim, side, task, curves) for side in (claim.higher, claim.lower)]
        places = claim.at or _shared(sides)
        for place in places or ("",):
            high, low = (_at(side, place) for side in sides)
            holds = None if high is None or low is None else high > low
            on = f"{task}, {axis} {place}" if place else task
            yield Held(on or claim.probe, names[0], names[1], holds)


_Side = Mapping[str, float] | float | None
"""Values by position, one value, or nothing."""


def _values(claim: CurveClaim, side: CurvePart | float, task: str, curves: Curves) -> _Side:
    if not isinstance(side, CurvePart):
        return side
    found = curves.of(claim.probe, side, task)
    return found if side.at is None else found.get(side.at)


def _shared(sides: Sequence[_Side]) -> tuple[str, ...]:
    """Positions of all sides that have some, in order."""
    by_place = [side for side in sides if isinstance(side, Mapping)]
    return tuple(p for p in (by_place[0] if by_place else ()) if all(p in s for s in by_place))


def _at(side: _Side, place: str) -> float | None:
    return side.get(place) if isinstance(side, Mapping) else side
