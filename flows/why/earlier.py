"""Published artifacts by where they stand in experiments."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from permafrost.flows.origin import RECORDED, Origin
from permafrost.storage.artifacts import ArtifactStore, Manifest, parse_ref
from permafrost.storage.errors import CorruptDataError, NotFoundError


class Earlier:
    """The manifests of a home. Each is read once, as a plan asks for hundreds."""

    def __init__(self, artifacts: ArtifactStore) -> None:
        self.artifacts = artifacts
        self._stages: dict[str, list[Manifest]] = {}
        self._known: dict[str, Manifest | None] = {}
        self._places: dict[str, tuple[Origin, ...]] = {}

    def of_stage(self, stage: str) -> list[Manifest]:
        """Every readable artifact of a stage, oldest first."""
        if stage not in self._stages:
            found = self._stages[stage] = list(self.artifacts.all(stage))
            self._known.update((str(m.ref), m) for m in found)
        return self._stages[stage]

    def manifest(self, ref: str) -> Manifest | None:
        """The manifest of `<stage>/<key>`; None if it is not there any more."""
        if ref not in self._known:
            try:
                self._known[ref] = self.artifacts.manifest(parse_ref(ref))
            except (NotFoundError, CorruptDataError):
                self._known[ref] = None
        return self._known[ref]

    def origins(self, manifest: Manifest) -> tuple[Origin, ...]:
        """Where an artifact stands: as it was recorded with it, and in the reports that show it. What earlier
        versions made says less of itself."""
        ref = str(manifest.ref)
        if ref not in self._places:
            own = [*_recorded(manifest)]
            shown = self._shown.get(ref, [])
            others = [o for o in shown if not any(_same_place(o, known) for known in own)]
            self._places[ref] = (*own, *others) or (self._told(manifest),)
        return self._places[ref]

    def alike(
        self, stage: str, origin: Origin, before: Manifest | None = None
    ) -> list[tuple[Manifest, Origin]]:
        """Artifacts of the same method, task and seed, latest first, each with the place that it shares; only
        those of the same experiment if there is one.

        Args:
            stage: of the artifacts.
            origin: where another one stands.
            before: only what was published before this one.
        """
        manifests = self.of_stage(stage)
        keys = [m.key for m in manifests]
        if before is not None and before.key in keys:
            manifests = manifests[: keys.index(before.key)]
        found = [
            (manifest, place)
            for manifest in reversed(manifests)
            for place in self.origins(manifest)
            if place.stands_with(origin)
        ]
        own = [pair for pair in found if pair[1].experiment == origin.experiment]
        if stage == "report":
            return own
        found = own or found
        return [pair for pair in found if pair[1].choice == origin.choice] or found

    @cached_property
    def _shown(self) -> dict[str, list[Origin]]:
        """What reports say of the artifacts that they show."""
        shown: dict[str, list[Origin]] = {}
        for manifest in self.of_stage("report"):
            for ref, origin in _cells(manifest.spec.config):
                shown.setdefault(ref, []).append(origin)
        return shown

    def _told(self, manifest: Manifest) -> Origin:
        """What a summary says, or that of the corpus that it is made of."""
        summary = manifest.summary
        if manifest.spec.stage == "report":
            return Origin(experiment=manifest.spec.config.get("name"))
        if not summary.keys() & {"method", "task", "curve", "pretraining"}:
            corpora = (i for i in manifest.spec.inputs if i.startswith("corpus/"))
            corpus = next((m for i in corpora if (m := self.manifest(i)) is not None), None)
            return Origin(name=None, task=None if corpus is None else corpus.summary.get("task"))
        named = (summary.get(n) for n in ("method", "curve", "pretraining"))
        unnamed = "" if manifest.spec.stage == "corpus" else None
        return Origin(
            name=next((n for n in named if n is not None), unnamed),
            task=summary.get("task"),
            seed=summary.get("seed"),
        )


def _same_place(one: Origin, other: Origin) -> bool:
    return one.experiment == other.experiment and one.stands_with(other)


def _recorded(manifest: Manifest) -> Iterator[Origin]:
    for fields in manifest.provenance.get(RECORDED, ()):
        try:
            yield Origin.model_validate(fields)
        except ValidationError:  # of a later version
            continue


def _cells(config: dict[str, Any]) -> Iterator[tuple[str, Origin]]:
    """Every artifact that a report shows, and its place. Earlier versions had fewer fields."""
    experiment = config.get("name")
    for cell in config.get("cells", ()):
        names = {name: cell.get(name) for name in ("task", "seed")}
        place = Origin(experiment=experiment, name=cell.get("method"), **names)
        refs = [cell.get(name) for name in ("result", "fit", "score")]
        yield from ((ref, place) for ref in {*refs, *cell.get("candidates", ())} - {None})
    for probe in config.get("probes", ()):
        name = f"{probe.get('probe')}: {probe.get('curve')}"
        yield probe.get("ref"), Origin(experiment=experiment, name=name, task=probe.get("task"))
    for trained in config.get("pretrainings", ()):
        names = {name: trained.get(name) for name in ("name", "task")}
        yield trained.get("ref"), Origin(experiment=experiment, **names)
    for task, ref in config.get("tasks", ()):
        yield ref, Origin(experiment=experiment, task=task)
