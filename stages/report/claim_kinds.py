"""What may be claimed in an experiment, for its report to test."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveFloat,
    model_validator,
)

from permafrost.storage.quoting import quoted


class _Config(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _require_once(field: str, names: Sequence[str]) -> None:
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"{field} names {quoted(twice)} twice; name every method once")


class Claim(_Config):
    """What a paper says of the methods, or what one expects of them; the report says what came of it."""

    kind: Literal["higher"] = "higher"
    says: str = Field(min_length=1)
    """In words, and where it stands: `table 1: GLOT above every pooling`."""
    higher: str = Field(min_length=1)
    """The method that is said to score higher."""
    lower: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    """Those that are said to score lower."""
    tasks: tuple[str, ...] = ()
    """On which tasks; on all of them if none is named."""
    over: Literal["tasks", "mean"] = "tasks"
    """Whether it is said of each of the tasks, or of a mean: over all `tasks` where they are named, else over
    those that both methods were run on, of the ones in the mean that the table prints. Of metrics that differ
    there is a mean only where the table prints one (see `averages`)."""
    gap: PositiveFloat | None = None
    """The smallest difference that is printed for it, in points (metric x 100). Where ours is within noise
    and half of its interval is wider than that, the test set is too small to say anything."""

    @model_validator(mode="after")
    def _is_of_others(self) -> "Claim":
        if self.higher in self.lower:
            raise ValueError(
                f"higher is {quoted(self.higher)}, and so is one of 'lower'; name others"
            )
        _require_once("lower", self.lower)
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        """All that it names."""
        return (self.higher, *self.lower)

    @property
    def curves(self) -> tuple[tuple[str, str], ...]:
        """None of a probe."""
        return ()


class SameBest(_Config):
    """The setting that is best for some methods is said to be best for others, as GLOT's threshold for a
    linear probe and for the tasks."""

    kind: Literal["same_best"]
    says: str = Field(min_length=1)
    """In words, and where it stands."""
    by: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=2)
    """Methods, one for each setting, whose best is sought: that with the highest mean over the tasks
    that they share."""
    of: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=2)
    """Others at the same settings, in the same order. On each task the one at the best setting is held
    against the best of the rest."""
    tasks: tuple[str, ...] = ()
    """Of the others; all on which they were run if none is named."""
    gap: PositiveFloat | None = None
    """As in claims that one method is higher."""

    @property
    def methods(self) -> tuple[str, ...]:
        """All that it names."""
        return (*self.by, *self.of)

    @property
    def curves(self) -> tuple[tuple[str, str], ...]:
        """None of a probe."""
        return ()

    @model_validator(mode="after")
    def _settings_are_the_same(self) -> "SameBest":
        if len(self.by) != len(self.of):
            raise ValueError(
                f"by names {len(self.by)} methods and of {len(self.of)}; give one of each for every setting, "
                "in the same order"
            )
        for field, names in (("by", self.by), ("of", self.of)):
            if twice := next((name for name in names if names.count(name) > 1), None):
                raise ValueError(f"{field} names {quoted(twice)} twice; give one for every setting")
        return self


class Within(_Config):
    """A method is said to score about as others do: "hardly differ", "nearly flat"."""

    kind: Literal["within"]
    says: str = Field(min_length=1)
    """In words, and where it stands."""
    method: str = Field(min_length=1)
    """The method whose score is held against those of the others."""
    of: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    """Those that are said to score about the same."""
    points: PositiveFloat
    """The difference, in points (metric x 100), below which two scores count as about the same. It is
    confirmed where the whole interval of the difference lies within so many on either side of 0, contrary
    where it lies wholly outside, else undecided."""
    tasks: tuple[str, ...] = ()
    """On which tasks; on all of them if none is named."""
    over: Literal["tasks", "mean"] = "tasks"
    """As in claims that one method is higher."""

    @model_validator(mode="after")
    def _is_of_others(self) -> "Within":
        if self.method in self.of:
            raise ValueError(f"method is {quoted(self.method)}, and so is one of 'of'; name others")
        _require_once("of", self.of)
        return self

    @property
    def methods(self) -> tuple[str, ...]:
        """All that it names."""
        return (self.method, *self.of)

    @property
    def curves(self) -> tuple[tuple[str, str], ...]:
        """None of a probe."""
        return ()


class CurvePart(_Config):
    """One measure of one curve of a probe."""

    method: str = Field(min_length=1)
    """Name of the curve in the probe."""
    measure: str = Field(min_length=1)
    """As the report's tables of the probe have it; of probes of kind `layers`, the score."""
    at: str | None = None
    """The value at this position alone, as in `1` or `final`; position by position if not given."""

    @property
    def called(self) -> str:
        """In a table of comparisons."""
        place = "" if self.at is None else f" at {self.at}"
        return f"{self.measure} of {self.method}{place}"


class CurveClaim(_Config):
    """What a paper says of quantities that have no test set: a curve of a probe lies above another, or above
    or below a number."""

    kind: Literal["curve"]
    says: str = Field(min_length=1)
    """In words, and where it stands."""
    probe: str = Field(min_length=1)
    """Its name in the experiment."""
    higher: CurvePart | FiniteFloat
    """What is said to be higher; a number may take its place."""
    lower: CurvePart | FiniteFloat
    """What is said to be lower; a number may take its place."""
    tasks: tuple[str, ...] = ()
    """On which tasks of the probe; on all of them if none is named."""
    at: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """At which positions; at all that both curves have if none is named."""
    methods: ClassVar[tuple[str, ...]] = ()
    """It names no rows."""

    @property
    def parts(self) -> tuple[CurvePart, ...]:
        """The curves among its two sides."""
        return tuple(p for p in (self.higher, self.lower) if isinstance(p, CurvePart))

    @property
    def curves(self) -> tuple[tuple[str, str], ...]:
        """Probe and curve of all that it names."""
        return tuple((self.probe, part.method) for part in self.parts)

    @model_validator(mode="after")
    def _names_a_curve(self) -> "CurveClaim":
        if not self.parts:
            raise ValueError("higher and lower are both numbers; give a curve for one of them")
        return self


def _with_kind(claim: Any) -> Any:
    """A claim that says no kind is that one method is higher than others."""
    is_plain = isinstance(claim, Mapping) and "kind" not in claim
    return {"kind": "higher", **claim} if is_plain else claim


AnyClaim = Annotated[
    Annotated[Claim | SameBest | Within | CurveClaim, Field(discriminator="kind")],
    BeforeValidator(_with_kind),
]
