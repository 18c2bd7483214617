"""Why an artifact is made: what differs from the nearest earlier one of the same method, task and seed."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest

from permafrost.flows.graph import FEATURES, Node
from permafrost.flows.origin import WEIGHTS_OF, Origin
from permafrost.flows.why.changed_code import code_changes
from permafrost.flows.why.changed_fields import Change, Leaf, changed_leaves, said, shown
from permafrost.flows.why.changed_identity import identity_changes
from permafrost.flows.why.changed_texts import CorpusParts
from permafrost.flows.why.changes_of_stages import Compared, Side, own_changes
from permafrost.flows.why.earlier import Earlier
from permafrost.flows.why.explanation import ROLES, Cause, Explanation, noun, plural
from permafrost.flows.why.known_stores import KnownStores
from permafrost.storage.adapted_stores import STORE
from permafrost.storage.artifacts import ArtifactSpec, Manifest
from permafrost.storage.keys import KEY_VERSION

_DEEPEST = 8
"""Inputs of inputs that are followed: candidates of a grid with patience form a long chain."""
_FEATURES = FEATURES.rstrip("/")
_CORPUS = "corpus"


@dataclass
class Explainer:
    """Compares artifacts with those of a home."""

    earlier: Earlier
    texts: Callable[[str], CorpusParts | None]
    """The texts of a corpus by its `<stage>/<key>`; None if they are not there."""
    planned: Mapping[str, Node] = field(default_factory=dict)
    """Nodes that are not published yet, by id."""
    told: frozenset[str] = frozenset()
    """Nodes that are explained beside the others, so that what is made from them need not repeat it."""
    _roots: dict[tuple[str, str], tuple[Change, ...]] = field(default_factory=dict)

    def why(
        self, spec: ArtifactSpec, origins: Sequence[Origin], before: Manifest | None = None
    ) -> Explanation:
        """Compare with the nearest earlier artifact of the same stage, method, task and seed: one of the same
        experiment if there is one, the one with the fewest differences, the latest of equal ones.

        Args:
            spec: what will be made, or was.
            origins: where it stands.
            before: only artifacts published before this one are considered.
        """
        places = origins or (Origin(),)
        for place in places:
            alike = self.earlier.alike(spec.stage, place, before)
            if others := [pair for pair in alike if pair[0].key != spec.ref.key]:
                nearest, origin = min(others, key=lambda pair: _unlike(pair[0].spec, spec))
                old, new = Side(nearest.spec, origin, nearest), Side(spec, place, before)
                changes, moved = self._between(old, new)
                roots = [r for m in moved for pair in m.pairs for r in self._root(*pair, 1)]
                causes = tuple(m.cause for m in moved)
                return Explanation(nearest, _place(spec, place), (*changes,), causes, _once(roots))
        return Explanation(None, _place(spec, places[0]))

    def _between(self, old: Side, new: Side) -> tuple[list[Change], list["_Moved"]]:
        """What differs in two artifacts themselves, and which of their inputs do."""
        version = KEY_VERSION if old.published is None else old.published.key_version
        if version != KEY_VERSION:
            # Neither configs nor names of definitions are comparable between versions.
            text = "made by an earlier version of Permafrost"
            return [Change(text, "version of keys", version, KEY_VERSION)], []
        other_texts = _shown_texts(old, new)
        changes = [*own_changes(old, new, Compared(self.texts, self.stores.source)), *other_texts]
        moved: list[_Moved] = []
        before, after = _by_stage(old.spec.inputs), _by_stage(new.spec.inputs)
        for stage in dict.fromkeys([*after, *before]):
            had, has = before.get(stage, []), after.get(stage, [])
            gone, came = [r for r in had if r not in has], [r for r in has if r not in had]
            if stage == _FEATURES:
                if bool(gone) != bool(came):
                    changes += [self._store("reads", ref) for ref in came]
                    changes += [self._store("no longer reads", ref) for ref in gone]
                changes += [] if changes or gone or came else _arrays(old.spec, new.spec)
            elif (
                len(had) != len(has)
                and new.spec.stage != "report"
                and not (stage == _CORPUS and other_texts)
            ):
                changes += _fewer_or_more(stage, had, has, old, new)
            if came and gone:
                role = ROLES.get(stage, noun(stage))
                pairs = tuple(self._paired(gone, came))
                cause = Cause(role, tuple(ref for _, ref in pairs), len(has))
                moved.append(_Moved(cause, pairs))
        code, new_code = old.spec.code, new.spec.code
        if changes:
            # Other settings reach other definitions; those that both reach tell whether code was changed too.
            shared = code.keys() & new_code.keys()
            code, new_code = ({name: c[name] for name in shared} for c in (code, new_code))
        return [*changes, *code_changes(code, new_code)], moved

    def _paired(self, gone: Sequence[str], came: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Each input that came with the one in whose place it stands."""
        left = [(ref, self._side(ref)) for ref in gone]
        for ref in came:
            side = self._side(ref)
            found = next(
                (
                    one
                    for one, other in left
                    if side and other and other.origin.stands_with(side.origin)
                ),
                left[0][0] if left else None,
            )
            if found is not None:
                left = [(one, other) for one, other in left if one != found]
                yield found, ref

    def _root(self, old: str, new: str, depth: int) -> tuple[Change, ...]:
        """How an input differs, followed to where it began; empty if that is told elsewhere."""
        if new in self.told or depth > _DEEPEST:
            return ()
        if (old, new) not in self._roots:
            self._roots[old, new] = ()  # while it is followed
            self._roots[old, new] = self._followed(old, new, depth)
        return self._roots[old, new]

    def _followed(self, old: str, new: str, depth: int) -> tuple[Change, ...]:
        if new.startswith(FEATURES):
            return self._stores_differ(old, new, depth)
        before, after = self._side(old), self._side(new)
        if before is None or after is None:
            what = noun(new.partition("/")[0])
            return (Change(f"the {what} of before is not in this home any more", what),)
        changes, moved = self._between(before, after)
        deeper = [r for m in moved for pair in m.pairs for r in self._root(*pair, depth + 1)]
        return _once([*changes, *deeper])

    def _stores_differ(self, old: str, new: str, depth: int) -> tuple[Change, ...]:
        """How features differ: by the identity of their stores."""
        one, other = (ref.removeprefix(FEATURES) for ref in (old, new))
        # Of an adapted backbone nothing but the artifact that names its store is known before training.
        if self._side(f"{STORE}/{one}") and self._side(f"{STORE}/{other}"):
            return self._root(f"{STORE}/{one}", f"{STORE}/{other}", depth + 1)
        if self.told & self.stores.filled_by(other):
            return ()
        before, after = (self.stores.identity(store_id) for store_id in (one, other))
        if before is None or after is None:
            return (Change("their store of before is not in this home any more", "store"),)
        leaves, recipe = changed_leaves(before, after), self.stores.recipe(after)
        return (*identity_changes(leaves, recipe, self.stores.source),)

    def _store(self, verb: str, ref: str) -> Change:
        """Features of a store in the place of none, or none in their place."""
        identity = self.stores.identity(ref.removeprefix(FEATURES)) or {}
        source = self.stores.source(str(identity.get("weights_digest", "")).partition(" ")[0])
        of = f" of backbone {shown(source)}" if source else ""
        return Change(f"{verb} features{of}", "features")

    def _side(self, ref: str) -> Side | None:
        """An artifact that is planned or published; None if it is not known any more."""
        node, manifest = self.planned.get(ref), self.earlier.manifest(ref)
        if node is not None and node.origins:
            return Side(node.spec, node.origins[0], manifest)
        if manifest is None:
            return None
        return Side(manifest.spec, self.earlier.origins(manifest)[0], manifest)

    @cached_property
    def stores(self) -> KnownStores:
        """Feature stores that are read."""
        return KnownStores(self.earlier, self.planned)


@dataclass(frozen=True)
class _Moved:
    cause: Cause
    pairs: tuple[tuple[str, str], ...]
    """Old and new."""


def _place(spec: ArtifactSpec, origin: Origin) -> str:
    what = noun(spec.stage)
    if spec.stage == "report":
        return f"{what} of {origin.experiment}" if origin.experiment else what
    return f"{what} of {origin}" if str(origin) else what


def _unlike(old: ArtifactSpec, new: ArtifactSpec) -> int:
    """How many fields and inputs differ; code counts as one."""
    n_inputs = sum(a != b for a, b in zip_longest(old.inputs, new.inputs))
    return len(changed_leaves(old.config, new.config)) + n_inputs + (old.code != new.code)


def _by_stage(inputs: Iterable[str]) -> dict[str, list[str]]:
    """Inputs by their stages, each once; of cached features `features/<store>`."""
    refs = ("/".join(i.split("/")[:2]) for i in inputs)
    found: dict[str, list[str]] = {}
    for ref in dict.fromkeys(refs):
        found.setdefault(ref.partition("/")[0], []).append(ref)
    return found


def _arrays(old: ArtifactSpec, new: ArtifactSpec) -> list[Change]:
    """Other arrays of the same stores, where no field says so."""
    before, after = (
        [i.split("/", 2)[2] for i in spec.inputs if i.startswith(FEATURES)] for spec in (old, new)
    )
    leaf = Leaf("layers", [*dict.fromkeys(before)], [*dict.fromkeys(after)])
    return [] if leaf.old == leaf.new else [said("reads", leaf)]


def _shown_texts(old: Side, new: Side) -> list[Change]:
    """The task that the report names, whose texts a score of a head is made from besides: another one, or no
    longer the same. It may be the score's own, which is one input then."""
    before, after = (
        [i for i in side.spec.inputs if i.startswith(f"{_CORPUS}/")] for side in (old, new)
    )
    written = old.origin.written, new.origin.written
    if before == after or not all(written):
        return []
    return [said("", leaf) for leaf in changed_leaves(*written) if leaf.path == WEIGHTS_OF]


def _fewer_or_more(
    stage: str, had: Sequence[str], has: Sequence[str], old: Side, new: Side
) -> list[Change]:
    """More inputs of a stage than before, or fewer: by the grid that says so, if one does."""
    leaves = changed_leaves(old.origin.written, new.origin.written)
    grid = [said(new.origin.name or "", leaf) for leaf in leaves if leaf.path.startswith("grid.")]
    several = plural(noun(stage))
    what = f"{len(had)} -> {len(has)} {several}"
    return grid or [Change(what, several, len(had), len(has))]


def _once(changes: Iterable[Change]) -> tuple[Change, ...]:
    return tuple({change.text: change for change in changes}.values())
