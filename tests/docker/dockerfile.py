"""Reads docker/Dockerfile: its stages, and what their instructions say."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "docker" / "Dockerfile"


@dataclass(frozen=True)
class Stage:
    """One FROM and what follows it."""

    name: str
    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)


def stages(path: Path = DOCKERFILE) -> dict[str, Stage]:
    """By name, in order."""
    found: dict[str, Stage] = {}
    for instruction, argument in _instructions(path.read_text()):
        if instruction == "FROM":
            base, name = re.fullmatch(r"(\S+) AS (\S+)", argument).groups()  # type: ignore[union-attr]
            found[name] = Stage(name, base)
        elif found:
            list(found.values())[-1].instructions.append((instruction, argument))
    return found


def chain(target: str) -> list[Stage]:
    """The stages that `target` is made of, from the first to itself."""
    all_stages = stages()
    out: list[Stage] = []
    while target in all_stages:
        out.insert(0, all_stages[target])
        target = all_stages[target].base
    return out


def environment(target: str) -> dict[str, str]:
    """What the image sets."""
    words = [w for _, argument in _all(target, "ENV") for w in shlex.split(argument)]
    return dict(w.split("=", 1) for w in words)


def health_check(target: str) -> list[str]:
    """The command that asks whether a container is well."""
    *_, (_, argument) = _all(target, "HEALTHCHECK")
    return json.loads(argument[argument.index("CMD") + 3 :])


def last(target: str, instruction: str) -> Any:
    """The argument of the last such instruction; of ENTRYPOINT and CMD the list."""
    *_, (_, argument) = _all(target, instruction)
    return json.loads(argument) if argument.startswith("[") else argument


def _all(target: str, instruction: str) -> list[tuple[str, str]]:
    return [i for stage in chain(target) for i in stage.instructions if i[0] == instruction]


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", " ", "\n".join(lines)).splitlines():
        instruction, argument = line.split(None, 1)
        yield instruction, argument.strip()
