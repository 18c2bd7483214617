"""How long stages will take, from what earlier ones took."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from permafrost.flows.origin import Origin
from permafrost.flows.why.earlier import Earlier
from permafrost.storage.artifacts import ArtifactSpec, Manifest

Counts = Callable[[str], Mapping[str, Any] | None]
"""From a corpus, `<stage>/<key>`, to `n_texts` and `n_examples`; None if they are not known."""


@dataclass(frozen=True)
class Work:
    """What the time of an artifact goes with."""

    amount: float
    unit: str
    """`tokens`, `examples x epochs`, `examples` or `texts`."""


@dataclass(frozen=True)
class Took:
    """An earlier artifact of the same stage and method, made on the same kind of device."""

    ref: str
    seconds: float
    work: Work | None
    """None where it was not recorded."""
    task: str | None


@dataclass(frozen=True)
class Estimate:
    """Seconds that one artifact will take, and what that is taken from."""

    seconds: float
    earlier: tuple[str, ...]
    """`<stage>/<key>` of each."""
    unit: str
    """By which the time was scaled; empty if it was not."""


@dataclass(frozen=True)
class StageTime:
    """What the artifacts of one stage will take, one after the other."""

    stage: str
    n_run: int
    seconds: float | None
    """None if there is no estimate for any of them."""
    n_unknown: int
    """Artifacts without an estimate, which `seconds` leaves out."""
    basis: str
    """What the estimate is taken from; empty without one."""

    def __str__(self) -> str:
        """As people read it."""
        if self.seconds is None:
            return "no estimate yet"
        more = f" and {self.n_unknown} without an estimate" if self.n_unknown else ""
        return f"about {duration(self.seconds)}{more}"


def estimate(earlier: Sequence[Took], work: Work | None, task: str | None) -> Estimate | None:
    """Scale what earlier artifacts took: those of the same task if there are any, else of all tasks.

    The rate is the sum of their seconds by the sum of their work; without a record of the work it is the mean
    of their seconds. None without any.

    Args:
        earlier: same stage and method, same kind of device.
        work: of the artifact; None if it is not known.
        task: of the artifact.
    """
    scaled = [t for t in earlier if work and t.work and t.work.unit == work.unit and t.work.amount]
    pool = scaled or list(earlier)
    pool = [t for t in pool if t.task == task] or pool
    if not pool:
        return None
    seconds, refs = sum(t.seconds for t in pool), tuple(t.ref for t in pool)
    if not scaled or work is None:
        return Estimate(seconds / len(pool), refs, "")
    done = sum(t.work.amount for t in pool if t.work)
    return Estimate(seconds / done * work.amount, refs, work.unit)


def work_of(spec: ArtifactSpec, counts: Counts) -> Work | None:
    """What the time of an artifact goes with, as far as its config and the counts of its corpus say so; None
    for a stage of which they say nothing. An extraction counts tokens, which its summary has."""
    own = counts(str(spec.ref)) if spec.stage == "corpus" else None
    corpora = [own] if own else [counts(i) for i in spec.inputs if i.startswith("corpus/")]
    known = [c for c in corpora if c and "n_examples" in c]
    if not known or spec.stage in ("evaluate", "extract", "report"):
        return None
    if spec.stage in ("corpus", "embed"):
        return Work(known[0]["n_texts"], "texts")
    n_examples, training = known[0]["n_examples"], _training(spec.config)
    if training is None:
        return Work(n_examples, "examples")
    epochs, steps, batch = (training.get(n) for n in ("max_epochs", "max_steps", "batch_size"))
    bounds = [n_examples * epochs] if epochs else []
    bounds += [steps * batch] if steps and batch else []
    return Work(min(bounds), "examples x epochs") if bounds else None


def _training(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The part of a config that says how long is trained at most."""
    inside = cast(Mapping[str, Any], config.get("finetune", {}))
    for section in (config, config.get("optim"), inside.get("optim")):
        if isinstance(section, Mapping) and "max_epochs" in section:
            return cast(Mapping[str, Any], section)
    return None


class EarlierTimes:
    """What the artifacts of a home took."""

    def __init__(self, earlier: Earlier, counts: Counts) -> None:
        self._earlier, self._counts = earlier, counts
        self._known: dict[tuple[str, str, str], list[Took]] = {}

    def of(self, spec: ArtifactSpec, origin: Origin, device: str) -> list[Took]:
        """Those of the same stage and method that were made on such a device."""
        if (method := _method(spec, origin)) is None:
            return []
        wanted = (spec.stage, method, device)
        if wanted not in self._known:
            self._known[wanted] = [*self._all(*wanted)]
        return self._known[wanted]

    def _all(self, stage: str, method: str, device: str) -> Iterable[Took]:
        for manifest in self._earlier.of_stage(stage):
            seconds = manifest.provenance.get("seconds")
            if not isinstance(seconds, int | float) or device_of(manifest) != device:
                continue
            for origin in self._earlier.origins(manifest):
                if _method(manifest.spec, origin) == method:
                    work = self._work(manifest)
                    if stage != "extract" or work is not None:
                        yield Took(str(manifest.ref), seconds, work, origin.task)
                    break

    def _work(self, manifest: Manifest) -> Work | None:
        if manifest.spec.stage == "extract":
            tokens = manifest.summary.get("n_tokens_computed")
            return Work(tokens, "tokens") if tokens else None
        return work_of(manifest.spec, self._counts)


def _method(spec: ArtifactSpec, origin: Origin) -> str | None:
    """What artifacts of a stage have to share for the time of one to say something about another."""
    match spec.stage:
        case "extract":
            store = spec.config["store"]
            # An adapted backbone has the sizes of the one that was trained.
            return f"{store['weights_digest'].partition(' ')[0]} {store['compute_dtype']}"
        case "corpus":
            return str(spec.config.get("kind"))
        case "report" | "adapt" | "store":
            return ""
        case _:
            return origin.name


def device_of(manifest: Manifest) -> str | None:
    """The kind of device that an artifact was made on; earlier versions recorded it only if torch could use
    no other than the CPU."""
    known = manifest.provenance.get("device")
    if known is None and str(manifest.provenance.get("torch")).endswith("+cpu"):
        return "cpu"
    return known


def stage_time(stage: str, device: str, estimates: Sequence[Estimate | None]) -> StageTime:
    """What the artifacts of a stage take together."""
    known = [e for e in estimates if e is not None]
    units = list(dict.fromkeys(e.unit for e in known if e.unit))
    n_earlier = len({ref for e in known for ref in e.earlier})
    scaled = f" by {' and '.join(units)}" if units else ""
    basis = f"{n_earlier:,} earlier on {device}{scaled}" if n_earlier else ""
    seconds = sum(e.seconds for e in known) if known else None
    return StageTime(stage, len(estimates), seconds, len(estimates) - len(known), basis)


def duration(seconds: float) -> str:
    """Seconds for people."""
    if seconds < 0.1:
        return "0 s" if not seconds else "0.1 s"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"
