"""The node of the report, and what it has of every result."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from permafrost.flows.context import BackboneSource, RunContext
from permafrost.flows.graph import Node
from permafrost.flows.stage import Stage
from permafrost.stages.extraction.target import ExtractTarget
from permafrost.stages.metrics.records import Role
from permafrost.stages.report.cells import Part
from permafrost.storage.artifacts import Draft
from permafrost.storage.features.identity import StoreIdentity
from permafrost.storage.progress import Progress


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CellEntry(_Entry):
    """One method on one task with one seed, and its artifacts."""

    method: str
    task: str
    seed: int
    is_random: bool
    """Whether another seed would give another result."""
    role: Role
    must_be_at_chance: bool = True
    """Of a control: whether it is held against chance."""
    category: str
    part: Part
    loss: str | None
    """The loss that training minimised; None where nothing is trained in epochs."""
    tunes_backbone: bool
    """Whether the backbone that it reads was trained."""
    result: str
    """What holds its metrics."""
    fit: str | None
    candidates: tuple[str, ...]
    """Fits that this one was chosen from."""
    score: str | None


class ProbeEntry(_Entry):
    """One curve of a probe on a task."""

    probe: str
    kind: str
    section: Literal["probes", "layers"]
    """Of the report."""
    caption: str
    curve: str
    task: str
    ref: str


class PretrainingEntry(_Entry):
    """Encoders that were pretrained."""

    name: str
    task: str
    layers: tuple[str, ...]
    ref: str
    measured_on: str | None = None
    """The task whose texts are measured besides."""


class CurveEntry(_Entry):
    """Methods that differ in one setting alone."""

    name: str
    values: dict[str, float]
    """The setting by method."""


class StoreEntry(_Entry):
    """The stores of a recipe, one per prompt of an ensemble."""

    recipe: str
    identities: tuple[StoreIdentity, ...]
    """Of an adapted backbone what was known before it was trained."""
    names: tuple[str, ...]
    """Ids, or names where no id was known."""
    recipes: tuple[dict[str, Any], ...]
    """What its texts are wrapped in, and how the pass is altered."""


class ExtractionEntry(_Entry):
    """One run of the backbone."""

    label: str
    ref: str


class TokenSource(_Entry):
    """Where the tokens of texts are, and the tokenizer that names them."""

    identity: StoreIdentity
    backbone: BackboneSource

    @classmethod
    def of(cls, target: ExtractTarget) -> "TokenSource":
        """Of the store of a target."""
        files = target.files
        where = BackboneSource(
            source=files.source, revision=files.revision or "main", codec=target.codec
        )
        return cls(identity=target.identity, backbone=where)


class AttentionSource(_Entry):
    """Stored attention rows."""

    recipe: str
    arrays: tuple[str, ...]
    tokens: TokenSource
    corpora: tuple[str, ...]
    """Whose texts have them."""


class Report(Stage):
    """Writes the page, the tables and the figures."""

    name = "report"

    @classmethod
    def run(cls, node: Node, context: RunContext, draft: Draft, progress: Progress) -> None:
        # Imported here: what draws takes a second, and only whoever writes a report needs it.
        from permafrost.flows.nodes.report_writing import write

        write(node, context, draft.folder)
