"""The log of a campaign: a line of JSON for each trial, by which the next start knows what is done."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Log:
    """A file that grows by a line for each trial."""

    path: Path

    def entries(self, fault: str, seed: int) -> list[dict[str, Any]]:
        """Trials of a fault with a seed, in the order in which they ended."""
        return [e for e in self._all() if (e["fault"], e["seed"]) == (fault, seed)]

    def _all(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue  # the line under way when the campaign was stopped

    def add(self, entry: dict[str, Any]) -> None:
        """Write a trial down."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def summary(self) -> str:
        """Counts of every fault, for people."""
        lines = list[str]()
        entries = list(self._all())
        for fault in sorted({e["fault"] for e in entries}):
            of = [e for e in entries if e["fault"] == fault]
            failed = [e for e in of if e["failure"] is not None]
            counts = Counter[str]()
            for entry in of:
                for name, n in entry.get("counts", {}).items():
                    counts[name] += n
            told = ", ".join(f"{name} {n:,}" for name, n in sorted(counts.items()))
            lines.append(f"{fault}: {len(of)} trials, {len(failed)} failed; {told}")
            lines += [f"  trial {e['trial']}: {e['failure']}" for e in failed]
        return "\n".join(lines)
