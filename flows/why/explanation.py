"""How an artifact differs from the nearest earlier one, and in which words that is said."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from permafrost.flows.origin import Origin
from permafrost.flows.why.changed_fields import Change, listed
from permafrost.storage.artifacts import Manifest

_NOUNS = {
    "extract": "extraction",
    "choose": "choice",
    "layers": "choice of layers",
    "finetune": "fine-tuning",
    "evaluate": "evaluation",
    "pretrain": "pretraining",
    "adapt": "adapted backbone",
    "store": "store of an adapted backbone",
    "embed": "embedding",
    "linear": "linear classifier",
}
ROLES = {
    "choose": "fit",
    "embed": "vectors",
    "adapt": "adapted backbone",
    "store": "adapted backbone",
    "linear": "result",
    "control": "result",
    "evaluate": "result",
}
"""What an artifact is to one that is made from it, where that is not its own name."""

_PLURALS = {
    "corpus": "corpora",
    "vectors": "vectors",
    "choice of layers": "choices of layers",
    "store of an adapted backbone": "stores of an adapted backbone",
}


def noun(stage: str) -> str:
    """What people call an artifact of a stage."""
    return _NOUNS.get(stage, stage)


def plural(word: str) -> str:
    """Of what people call an artifact, or what it is to another."""
    return _PLURALS.get(word, f"{word}s")


@dataclass(frozen=True)
class Cause:
    """Inputs of one kind that changed."""

    role: str
    """What they are to the artifact: `fit`, `corpus`, `features`."""
    refs: tuple[str, ...]
    """The new ones."""
    n_all: int
    """How many of this kind there are."""

    def __str__(self) -> str:
        n, role = len(self.refs), self.role
        if role == "features" or self.n_all == 1:
            return f"its {role}"
        return f"its {plural(role)}" if n == self.n_all else f"{n:,} of its {plural(role)}"


@dataclass(frozen=True)
class Explanation:
    """How an artifact differs from the nearest earlier one."""

    nearest: Manifest | None
    place: str
    """What it is: `fit of GLOT on CoLA, seed 2`."""
    changes: tuple[Change, ...] = ()
    """Its own differences."""
    causes: tuple[Cause, ...] = ()
    """What it is made from that changed."""
    roots: tuple[Change, ...] = ()
    """How that differs, followed to where it began."""
    lost: str = ""
    """For what is published and made again nevertheless: what of it is gone."""
    amount: str = ""
    """What an extraction comes to: `120 texts new`."""

    @property
    def headline(self) -> str:
        """All of it in one line."""
        return f"{self.reason} ({self.amount})" if self.amount else self.reason

    @property
    def reason(self) -> str:
        """The same without the amount."""
        if self.lost:
            return self.lost
        return f"new: no earlier {self.place}" if self.nearest is None else self._differs()

    @property
    def is_new(self) -> bool:
        """Whether there is nothing to compare with."""
        return self.nearest is None and not self.lost

    def _differs(self) -> str:
        own = "; ".join(dict.fromkeys(c.text for c in self.changes))
        if own or not self.causes:
            return own or "its inputs stand in another order"
        roots = list(dict.fromkeys(c.text for c in self.roots))
        because = f"because {self._causes()} changed"
        return because + (f": {listed(roots, 3)}" if roots else "")

    def _causes(self) -> str:
        *first, last = dict.fromkeys(map(str, self.causes))
        return f"{', '.join(first)} and {last}" if first else last

    def lines(self) -> list[str]:
        """All of it, line by line, with what it is compared with."""
        if self.nearest is None:
            return [self.headline]
        own = list(dict.fromkeys(c.text for c in self.changes))
        roots = [c.text for c in self.roots if c.text not in own]
        colon = ":" if roots else ""
        told = [*own, *([f"because {self._causes()} changed{colon}"] if self.causes else [])]
        made = str(self.nearest.provenance.get("published", ""))[:16].replace("T", " ")
        compared = f"compared with {self.nearest.ref}" + (f" of {made}" if made else "")
        amount = [self.amount] if self.amount else []
        return [*told, *(f"  {root}" for root in roots), *amount, compared]

    def as_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "why": self.headline,
            "nearest": None if self.nearest is None else str(self.nearest.ref),
            "differences": [c.as_json() for c in self.changes],
            "because": [{"what": str(c), "artifacts": list(c.refs)} for c in self.causes],
            "began_with": [c.as_json() for c in self.roots],
        }


def new_places(stage: str, places: Sequence[Origin], n_published: int) -> str:
    """That there is nothing earlier of some places of a stage, in one line.

    Args:
        stage: of the artifacts.
        places: where they stand.
        n_published: artifacts of the stage in the home.
    """
    if not n_published:
        return f"new: no earlier {noun(stage)}"
    named: dict[str, list[Origin]] = {}
    for place in places:
        named.setdefault(place.name or "", []).append(place)
    alike: dict[str, list[str]] = {}
    for name, some in named.items():
        alike.setdefault(_on(some), []).append(name)
    parts = [
        " on ".join(n for n in (listed([*filter(None, names)]), on) if n)
        for on, names in alike.items()
    ]
    what = "; ".join(filter(None, parts))
    return f"new: no earlier {noun(stage)}" + (f" of {what}" if what else "")


def _on(places: Sequence[Origin]) -> str:
    """Tasks and seeds; tasks with the same seeds together."""
    seeds_of: dict[str, list[int]] = {}
    for place in places:
        seeds = seeds_of.setdefault(place.task or "", [])
        seeds += [] if place.seed is None or place.seed in seeds else [place.seed]
    tasks_of: dict[tuple[int, ...], list[str]] = {}
    for task, seeds in seeds_of.items():
        tasks_of.setdefault(tuple(seeds), []).append(task)
    parts: list[str] = []
    for seeds, tasks in tasks_of.items():
        drawn = f"seed{'' if len(seeds) == 1 else 's'} {listed([*map(str, seeds)], 10)}"
        named = listed([*filter(None, tasks)])
        parts.append(", ".join([*filter(None, [named]), *([drawn] if seeds else [])]))
    return "; ".join(filter(None, parts))
