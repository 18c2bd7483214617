"""The figure of a probe: one panel per task and measure, one line per method.

A figure is drawn inside `canvas.drawing()`. Lengths of a figure are points.
"""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from permafrost.stages.report.canvas import drawable
from permafrost.stages.report.frame import framed, legend_height, line, of
from permafrost.stages.report.palette import INK, MUTED, Mark
from permafrost.stages.report.probe_curves import Probe, ProbeCurve

_ROW = 160.0
_TICKS = 8


def probe_figure(probe: Probe, marks: dict[str, Mark]) -> Figure:
    """Every measure by place, two panels across; each measure has its own scale, dev and test share one.

    A ring is the place that dev chose.
    """
    names = of(marks, set(probe.methods))
    panels = probe.panels()
    n_across = min(2, len(panels))
    n_down = -(-len(panels) // n_across)
    height = legend_height(list(names)) + n_down * _ROW + 34
    figure, top = framed(height, names, ())
    grid = figure.add_gridspec(
        n_down,
        n_across,
        left=0.09,
        right=0.985,
        top=top - 16 / height,
        bottom=42 / height,
        hspace=0.42,
        wspace=0.2,
    )
    scales: dict[tuple[str, str], Axes] = {}
    for i, ((task, measure), curves) in enumerate(panels.items()):
        axes = figure.add_subplot(grid[i // n_across, i % n_across])
        scale = task, measure.removeprefix("dev ").removeprefix("test ")
        if (first := scales.setdefault(scale, axes)) is not axes:
            axes.sharey(first)
        _title(axes, probe, task, curves[0])
        for curve in reversed(curves):
            _draw(axes, curve, names[curve.method])
        _ticks(axes, curves)
        axes.autoscale_view()
    figure.supxlabel(probe.axis, y=6 / height, fontsize=10.5, color=MUTED, va="bottom")
    return figure


def _title(axes: Axes, probe: Probe, task: str, curve: ProbeCurve) -> None:
    words = f"{curve.measure}{' × 100' if curve.unit == 'share' else ''}"
    if len(probe.tasks) > 1:
        words = f"{drawable(task, 16)} · {words}"
    axes.set_title(words, color=INK)


def _draw(axes: Axes, curve: ProbeCurve, mark: Mark) -> None:
    values = 100 * curve.values if curve.unit == "share" else curve.values
    axes.add_line(line(mark, curve.x, values, small=True))
    if curve.chosen is not None:
        axes.plot(
            curve.x[curve.chosen],
            values[curve.chosen],
            marker="o",
            markersize=10,
            markerfacecolor="none",
            markeredgecolor=mark.colour,
            markeredgewidth=1.1,
        )


def _ticks(axes: Axes, curves: list[ProbeCurve]) -> None:
    places = sorted({place for c in curves for place in zip(c.x.tolist(), c.at, strict=True)})
    step = -(-len(places) // _TICKS)
    # The last place is always named: it is the layer, or the threshold, that people know best.
    kept = places[(len(places) - 1) % step :: step]
    axes.set_xticks([x for x, _ in kept], [drawable(at, 8) for _, at in kept])
