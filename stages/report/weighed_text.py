"""A text with token weights relative to uniform: as data, as HTML, and as a stand-alone picture.

Axes: T tokens of one text. The unit is 1/T, the weight under mean pooling, so that a colour means the same
for different methods and for texts of different lengths.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from permafrost.stages.report.canvas import drawable, shortened
from permafrost.stages.report.palette import HEAT, INK, MUTED, PAPER
from permafrost.stages.report.tokens import ReadToken

N_LEVELS = 7
N_OPEN = 120
"""Number of tokens of a long text that are visible at first; the others can be unfolded."""
MAX_TOKENS = 512
"""Maximum tokens shown of one text, including folded ones; the number and weight of the others is given."""
_WIDTH = 700.0
_MARGIN = 14.0
_FONT = 9.0
_ADVANCE = 0.602 * _FONT
"""Width of a character of the fixed-width font, in points."""
_LINE = 17.0


@dataclass(frozen=True)
class Piece:
    """One token as readable text."""

    text: str
    glued: bool
    """Whether it follows the previous token without a space."""
    ratio: float
    """Weight in units of the uniform weight."""
    is_heaviest: bool = False
    """Whether it is among the tokens that are named below the text."""

    @property
    def level(self) -> int:
        """0 to 6: a quarter of uniform or less, half of it, uniform, 2, 4, 8, and 16 times or more."""
        if self.ratio <= 0:
            return 0
        return min(max(round(math.log2(self.ratio)) + 2, 0), N_LEVELS - 1)


@dataclass(frozen=True)
class Passage:
    """One text of an example under one method."""

    n_tokens: int
    pieces: tuple[Piece, ...]
    """At most the first `MAX_TOKENS`."""
    heaviest: tuple[tuple[str, float], ...]
    """Up to three tokens with the most weight, and their shares of at least half a percent."""

    @property
    def n_open(self) -> int:
        """Number of pieces visible at first: `N_OPEN`, or all if the text is at most a third longer."""
        return len(self.pieces) if self.n_tokens <= N_OPEN * 4 // 3 else N_OPEN

    @property
    def shown(self) -> tuple[Piece, ...]:
        """The pieces visible at first."""
        return self.pieces[: self.n_open]

    @property
    def folded(self) -> tuple[Piece, ...]:
        """The pieces that can be unfolded."""
        return self.pieces[self.n_open :]

    @property
    def n_cut(self) -> int:
        """Number of tokens beyond the pieces."""
        return self.n_tokens - len(self.pieces)

    @property
    def cut_share(self) -> float:
        """Weight of the tokens beyond the pieces."""
        return max(1 - sum(piece.ratio for piece in self.pieces) / self.n_tokens, 0.0)

    @property
    def hidden_share(self) -> float:
        """Weight of the tokens that are not visible at first."""
        return max(1 - sum(piece.ratio for piece in self.shown) / self.n_tokens, 0.0)

    @property
    def is_uniform(self) -> bool:
        """Whether all pieces have the uniform weight, within one percent."""
        return all(abs(piece.ratio - 1) < 0.01 for piece in self.pieces)


@dataclass(frozen=True)
class WeightRow:
    """One method's weights and prediction on an example."""

    method: str
    prediction: str | None
    """None if there is no prediction."""
    correct: bool | None
    """None if the prediction is not a class."""
    passages: tuple[Passage, ...]
    """One per text."""


@dataclass(frozen=True)
class Example:
    """One test example, of one text or two, under every method that has token weights."""

    task: str
    label: str | None
    """None if examples have none."""
    n_tokens: tuple[int, ...]
    """Number of tokens of each text."""
    rows: tuple[WeightRow, ...]


@dataclass(frozen=True)
class _Line:
    """Pieces with the x of their left edges, or a remark."""

    pieces: tuple[tuple[Piece, float], ...]
    remark: str = ""


def passage_of(words: Sequence[ReadToken], weights_T: Float64[np.ndarray, " t"]) -> Passage:
    """One text with the weights of its tokens, which sum to 1."""
    order = np.argsort(-weights_T, kind="stable")[:3]
    top = [int(i) for i in order if weights_T[i] >= 0.005]
    is_uniform = bool((np.abs(weights_T * len(words) - 1) < 0.01).all())
    return Passage(
        n_tokens=len(words),
        pieces=tuple(
            Piece(
                *(word.text, word.glued, float(weight * len(words))),
                is_heaviest=place in top and not is_uniform,
            )
            for place, (word, weight) in enumerate(zip(words[:MAX_TOKENS], weights_T, strict=False))
        ),
        heaviest=tuple((words[i].text, float(weights_T[i])) for i in top),
    )


def pieces_html(pieces: Sequence[Piece]) -> Markup:
    """Tokens as continuous text, each with its level; pieces of a word are adjacent."""
    parts: list[Markup] = []
    for i, piece in enumerate(pieces):
        if i and not piece.glued:
            parts.append(Markup(" "))
        parts.append(
            Markup('<span class="t w{}{}" title="{:.2g}× uniform">{}</span>').format(
                piece.level,
                " top" if piece.is_heaviest else "",
                piece.ratio,
                shortened(piece.text, 60),
            )
        )
    return Markup("").join(parts)


def token_picture(example: Example) -> Figure:
    """Draw the example, one block per method; call inside `canvas.drawing()`.

    Of a long text, the tokens that are visible at first in a page are drawn, with the number of the others.
    """
    blocks = [_lines(row) for row in example.rows]
    height = 44 + sum(24 + _LINE * len(lines) for lines in blocks)
    figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))
    axes.set_axis_off()
    label = "" if example.label is None else f" · label {drawable(example.label, 30)}"
    heading = f"{drawable(example.task, 50)}{label}"
    axes.text(_MARGIN, 18, heading, fontsize=11, fontweight="bold", va="center")
    legend = [Piece(f"{2.0 ** (i - 2):g}×", False, 2.0 ** (i - 2)) for i in range(1, len(HEAT))]
    left = _WIDTH - _MARGIN - sum((len(p.text) + 1) * _ADVANCE for p in legend) + _ADVANCE
    axes.text(left - 8, 18, "weight / uniform", fontsize=9.5, color=MUTED, va="center", ha="right")
    for piece in legend:
        _draw(axes, piece, left, 11.0)
        left += (len(piece.text) + 1) * _ADVANCE
    top = 34.0
    for row, lines in zip(example.rows, blocks, strict=True):
        axes.text(_MARGIN, top + 8, drawable(row.method), fontsize=9.5, color=INK, va="center")
        prediction = "" if row.prediction is None else f"predicts {drawable(row.prediction, 30)}"
        axes.text(
            _WIDTH - _MARGIN,
            top + 8,
            prediction,
            fontsize=9.5,
            color=MUTED,
            va="center",
            ha="right",
        )
        top += 20
        for line in lines:
            for piece, x in line.pieces:
                _draw(axes, piece, x, top)
            if line.remark:
                axes.text(_MARGIN, top + 9.6, line.remark, fontsize=_FONT, color=MUTED)
            top += _LINE
        top += 4
    return figure


def _lines(row: WeightRow) -> list[_Line]:
    """All texts of a row, each starting on a new line."""
    return [line for passage in row.passages for line in _wrapped(passage)]


def _wrapped(passage: Passage) -> list[_Line]:
    """A text's pieces, wrapped at the right margin, and a remark on those left out."""
    lines: list[list[tuple[Piece, float]]] = [[]]
    x = _MARGIN
    for piece in passage.shown:
        width = len(_text(piece)) * _ADVANCE
        gap = 0.0 if piece.glued or not lines[-1] else _ADVANCE * 0.9
        if x + gap + width > _WIDTH - _MARGIN and lines[-1]:
            lines.append([])
            x, gap = _MARGIN, 0.0
        lines[-1].append((piece, x + gap))
        x += gap + width
    wrapped = [_Line(tuple(line)) for line in lines]
    n_more = passage.n_tokens - len(passage.shown)
    if n_more:
        remark = f"… {n_more} more tokens, with {passage.hidden_share:.0%} of the weight"
        wrapped.append(_Line((), remark))
    return wrapped


def _text(piece: Piece) -> str:
    return drawable(piece.text, 60)


def _draw(axes: Axes, piece: Piece, x: float, y: float) -> None:
    text = _text(piece)
    width = len(text) * _ADVANCE
    # Not add_patch, which measures each patch to update the axes' limits, which are fixed here.
    axes.add_artist(
        FancyBboxPatch(
            (x, y),
            width,
            _LINE - 4,
            boxstyle="round,pad=0,rounding_size=1.5",
            facecolor=HEAT[piece.level],
            edgecolor=INK if piece.is_heaviest else "none",
            linewidth=1.2,
        )
    )
    colour = {0: MUTED, len(HEAT) - 1: PAPER}.get(piece.level, INK)
    axes.text(
        x, y + 9.6, text, fontsize=_FONT, family="DejaVu Sans Mono", color=colour, va="baseline"
    )
