"""Why a stage will run: the differences from the nearest earlier artifact."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import zip_longest

from permafrost.storage.artifacts import ArtifactSpec, ArtifactStore, Manifest, parse_ref
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError, NotFoundError
from permafrost.storage.features.identity import differences
from permafrost.storage.keys import KEY_VERSION, to_plain

_DEEPEST = 8
"""Maximum depth to which a difference is followed through inputs: candidates of a grid with patience form a
long chain."""


_LIKELY = 16
"""Artifacts that are compared in full: those that differ least at first sight."""


@dataclass(frozen=True)
class Difference:
    """One field that differs."""

    path: str
    old: object
    new: object

    def __str__(self) -> str:
        return f"{self.path}: was {self.old!r}, now {self.new!r}"


@dataclass(frozen=True)
class Explanation:
    """The nearest earlier artifact of the same stage and how this one differs from it."""

    nearest: Manifest | None
    differences: tuple[Difference, ...]

    @property
    def headline(self) -> str:
        """The first difference."""
        if self.nearest is None:
            return "never ran before"
        first, *others = [str(d) for d in self.differences] or [f"same as {self.nearest.ref}"]
        return f"{first} (and {len(others)} more)" if others else first

    def as_json(self) -> dict[str, object]:
        """Plain JSON."""
        return {
            "nearest": None if self.nearest is None else str(self.nearest.ref),
            "differences": [vars(d) for d in self.differences],
        }


class Explainer:
    """Compares specs with the artifacts of a store, which are read only once, as a plan has hundreds of
    specs.

    Args:
        store: published artifacts.
        planned: specs of artifacts that are not published yet, by `<stage>/<key>`, so that a changed input
            can be followed to what changed in it.
    """

    def __init__(
        self, store: ArtifactStore, planned: Mapping[str, ArtifactSpec] | None = None
    ) -> None:
        self._store = store
        self._specs: dict[str, ArtifactSpec | None] = dict(planned or {})
        self._published: dict[str, list[Manifest]] = {}

    def why(self, spec: ArtifactSpec, before: Manifest | None = None) -> Explanation:
        """Compare `spec` with earlier artifacts of its stage, and explain the difference from the nearest:
        the one with the fewest differences, the latest of equal ones.

        Args:
            spec: what will run, or did.
            before: only artifacts published before this one are considered.
        """
        if spec.stage not in self._published:
            published = self._published[spec.stage] = list(self._store.all(spec.stage))
            self._specs = {str(m.ref): m.spec for m in published} | self._specs
        candidates = self._published[spec.stage]
        keys = [m.key for m in candidates]
        if before is not None and before.key in keys:
            candidates = candidates[: keys.index(before.key)]
        candidates = [m for m in candidates if m.key != spec.ref.key]
        if not candidates:
            return Explanation(None, ())
        latest = candidates[::-1]
        likely = sorted(latest, key=lambda m: _unlike(m, spec))[:_LIKELY]
        # A score may differ in its input only; the differences within that input then decide.
        sizes = [(len(_raw(m.spec, spec)), len(self._compare(m.spec, spec))) for m in likely]
        nearest = likely[sizes.index(min(sizes))]
        changes = self._compare(nearest.spec, spec)
        if nearest.key_version != KEY_VERSION:
            # Names of definitions are not comparable between versions.
            changes = [d for d in changes if not d.path.startswith("code.")]
            changes.insert(0, Difference("version of keys", nearest.key_version, KEY_VERSION))
        return Explanation(nearest, tuple(changes))

    def _compare(self, old: ArtifactSpec, new: ArtifactSpec, depth: int = 0) -> list[Difference]:
        """Differences between two artifacts, followed through inputs to their origin."""
        changes: list[Difference] = []
        for path, a, b in _raw(old, new):
            follow = path.startswith("inputs[") and depth < _DEEPEST
            deeper = self._through_input(a, b, depth + 1) if follow else []
            changes.extend(
                [Difference(f"{path} -> {d.path}", d.old, d.new) for d in deeper]
                or [Difference(path, a, b)]
            )
        return changes

    def _through_input(self, old: object, new: object, depth: int) -> list[Difference]:
        if (
            not isinstance(old, str)
            or not isinstance(new, str)
            or old.split("/")[0] != new.split("/")[0]
        ):
            return []
        if old.startswith("features/"):
            return _through_identity(self._store, old, new)
        before, after = self._spec(old), self._spec(new)
        return [] if before is None or after is None else self._compare(before, after, depth)

    def _spec(self, ref: str) -> ArtifactSpec | None:
        """The spec of a published or planned artifact; None if it is not known any more."""
        if ref not in self._specs:
            try:
                self._specs[ref] = self._store.manifest(parse_ref(ref)).spec
            except (NotFoundError, CorruptDataError):
                self._specs[ref] = None
        return self._specs[ref]


def explain(
    store: ArtifactStore, spec: ArtifactSpec, before: Manifest | None = None
) -> Explanation:
    """Compare one spec with earlier artifacts, see `Explainer.why`."""
    return Explainer(store).why(spec, before)


def _unlike(manifest: Manifest, spec: ArtifactSpec) -> int:
    """A rough count of differences, without looking inside."""
    old = manifest.spec
    fields = old.config.keys() | spec.config.keys()
    n_fields = sum(old.config.get(f) != spec.config.get(f) for f in fields)
    n_inputs = sum(a != b for a, b in zip_longest(old.inputs, spec.inputs))
    return n_fields + n_inputs + (old.code != spec.code) + (manifest.key_version != KEY_VERSION)


def _raw(old: ArtifactSpec, new: ArtifactSpec) -> list[tuple[str, object, object]]:
    # Config first, as that is what users change on purpose; code last, function by function.
    parts = ("config", "inputs", "code")
    left, right = to_plain(old), to_plain(new)
    return [
        d
        for part in parts
        if left[part] != right[part]  # the code is hundreds of definitions, mostly the same ones
        for d in differences({part: left[part]}, {part: right[part]})
    ]


def _through_identity(store: ArtifactStore, old: str, new: str) -> list[Difference]:
    """The fields of the identity in which the stores of two feature inputs differ."""
    (_, old_id, old_array), (_, new_id, new_array) = old.split("/", 2), new.split("/", 2)
    if old_id == new_id or old_array != new_array:
        return []
    paths = [store.root.parent / "features" / i / "store.json" for i in (old_id, new_id)]
    if not all(p.exists() for p in paths):
        return []
    before, after = (read_json(p)["identity"] for p in paths)
    return [Difference(*d) for d in differences(before, after)]
