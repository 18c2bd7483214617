"""What is known of feature stores by the artifacts of their extractions, and by their records."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from permafrost.flows.graph import Node
from permafrost.flows.origin import Origin
from permafrost.flows.why.earlier import Earlier
from permafrost.storage.durable import read_json
from permafrost.storage.errors import CorruptDataError
from permafrost.storage.keys import digest

_EXTRACT = "extract"


class KnownStores:
    """Identities and names of the stores that artifacts of a home read, and nodes of a plan."""

    def __init__(self, earlier: Earlier, planned: Mapping[str, Node]) -> None:
        self._earlier = earlier
        self._planned = [node for node in planned.values() if node.stage == _EXTRACT]

    def identity(self, store_id: str) -> dict[str, Any] | None:
        """The identity of a store; None if nothing is known of it any more."""
        found = next((i for i, _ in self._extractions if digest(i) == store_id), None)
        record = self._record(store_id) if found is None else None
        return found if record is None else record["identity"]

    def recipe(self, identity: Mapping[str, Any]) -> str:
        """The name that an experiment gives the recipe; empty for its own."""
        names = (o.name for i, o in self._extractions if i == identity)
        return next((name for name in names if name), "")

    def source(self, weights_digest: str) -> str | None:
        """Where the backbone with these weights was looked for; None if nothing says so."""
        return self._sources.get(weights_digest)

    def filled_by(self, store_id: str) -> set[str]:
        """Nodes of the plan that extract into a store."""
        return {n.id for n in self._planned if digest(n.config["store"]) == store_id}

    @cached_property
    def _extractions(self) -> list[tuple[dict[str, Any], Origin]]:
        """Each store, and the place of an extraction into it: planned ones first, then the latest."""
        planned = [(n.config["store"], o) for n in self._planned for o in n.origins]
        made = [
            (manifest.spec.config["store"], origin)
            for manifest in reversed(self._earlier.of_stage(_EXTRACT))
            for origin in self._earlier.origins(manifest)
        ]
        return [*planned, *made]

    @cached_property
    def _sources(self) -> dict[str, str]:
        recorded = (
            (record["identity"]["weights_digest"], record["backbone"]["source"])
            for record in self._records()
        )
        written = (
            (identity["weights_digest"].partition(" ")[0], origin.written["source"])
            for identity, origin in reversed(self._extractions)
            if "source" in origin.written
        )
        # Also of backbones that stand inside a method, as those of node labels.
        planned = (
            (
                n.config["store"]["weights_digest"].partition(" ")[0],
                n.run_facts["backbone"]["source"],
            )
            for n in self._planned
            if "backbone" in n.run_facts
        )
        return {**dict(recorded), **dict(written), **dict(planned)}

    def _records(self) -> Iterator[dict[str, Any]]:
        stores = self._earlier.artifacts.root.parent / "features"
        for path in sorted(stores.glob("*")):
            if (record := self._record(path.name)) is not None:
                yield record

    def _record(self, store_id: str) -> dict[str, Any] | None:
        path = self._earlier.artifacts.root.parent / "features" / store_id / "store.json"
        try:
            return read_json(path)
        except (FileNotFoundError, CorruptDataError):
            return None
