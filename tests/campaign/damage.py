"""Any file of a home flipped, cut, extended, swapped with another or deleted: detected or harmless through
every command, never a wrong number, never a bare traceback; and put right as the messages say."""

import contextlib
import io
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import permafrost
from permafrost.storage.errors import PermafrostError
from tests.campaign.children import Ended, answer_of, forked
from tests.campaign.commands import command, require_told
from tests.campaign.homes import Homes, copied, differences, problems_of
from tests.storage.small_store import flip

TEXTS = ("snow melts", "the deep lake freezes slowly under thin ice .")
Damage = Callable[[Path, Path, random.Random], object]


def _swap(path: Path, other: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)


def _cut(path: Path, other: Path, rng: random.Random) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: rng.randrange(len(content))] if content else b"")


def _flip(path: Path, other: Path, rng: random.Random) -> None:
    if size := path.stat().st_size:
        flip(path, rng.randrange(size), mask=1 << rng.randrange(8))


HOW: dict[str, Damage] = {
    "flipped": _flip,
    "cut": _cut,
    "extended": lambda path, other, rng: path.write_bytes(path.read_bytes() + rng.randbytes(9)),
    "swapped": _swap,
    "deleted": lambda path, other, rng: path.unlink(),
}


@dataclass
class Damages:
    """Every file of a home and every damage, in a random order."""

    homes: Homes
    folder: Path
    seed: int
    _right: dict[str, Any] | None = None

    def trial(self, number: int, rng: random.Random) -> dict[str, Any] | None:
        """One damage to one file; None when there are no more.

        Raises:
            AssertionError: a number was wrong, a command had a traceback, or it could not be put right.
        """
        source = self.homes.every
        names = sorted(p.relative_to(source).as_posix() for p in source.rglob("*") if p.is_file())
        cases = [(name, how) for name in names for how in HOW]
        random.Random(self.seed).shuffle(cases)
        if number >= len(cases):
            return None
        name, how = cases[number]
        if self._right is None:
            # To embed texts and to predict stores their features.
            self._right = self._read(copied(source, self._whole))
            assert self._right["python"][0] == [], self._right["python"]
        home = copied(source, self.folder / "home")
        other = name
        try:
            alike = [n for n in names if Path(n).suffix == Path(name).suffix and n != name]
            other = rng.choice(alike or [n for n in names if n != name])
            for path in (home / name, home / other):
                # A link's other name stays as it is.
                content = path.read_bytes()
                path.unlink()
                path.write_bytes(content)
            HOW[how](home / name, home / other, rng)
            told = self._require_named_or_harmless(home, self._right)
            self._put_right(home)
        except AssertionError as error:
            raise AssertionError(f"{name} {how} (with {other}): {error}") from error
        finally:
            shutil.rmtree(home)
        counts = {"damages": 1, how: 1, "told by verify" if told else "verify finds nothing": 1}
        return {"file": name, "how": how, "of": len(cases), "counts": counts}

    @property
    def _whole(self) -> Path:
        return self.folder / "whole"

    def _read(self, home: Path) -> dict[str, Any]:
        """What every reading command says and gives: status and words by command, and what they wrote."""
        texts, out = self.folder / "texts.jsonl", self.folder / "out"
        texts.parent.mkdir(exist_ok=True)
        texts.write_text("".join(f'{{"text": "{t}"}}\n' for t in TEXTS))
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        head, flags = self.homes.head, ("--home", home)
        commands = {
            "verify": ("verify",),
            "ls": ("ls",),
            "show a store": ("show", self.homes.store),
            "show a head": ("show", head),
            "runs": ("runs",),
            "runs of first": ("runs", "first"),
            "du": ("du",),
            "compare": ("compare", "first@1", "wide@1"),
            "plan": ("plan", self.homes.experiment("wide")),
            "gc": ("gc", "--dry-run"),
            "predict": ("predict", texts, "--head", head, "-o", out / "answers.jsonl"),
            "embed": ("embed", texts, "--head", head, "-o", out / "vectors.parquet"),
            "export": ("export", head, "-o", out / "exported", "--device", "cpu"),
        }
        reference = self._whole

        def read() -> dict[str, Any]:
            said = {name: list(_said(command(*c, *flags))) for name, c in commands.items()}
            return {**said, "python": [_python(home, reference), ""]}

        ended = forked(read)
        assert ended.status == 0, ended.tail
        found = dict(ended.answer)
        if (answers := out / "answers.jsonl").exists():
            found["answers"] = answers.read_text()
        if (vectors := out / "vectors.parquet").exists():
            found["vectors"] = answer_of(lambda: str(pq.read_table(vectors).to_pylist()))
        if (weights := out / "exported" / "model.safetensors").exists():
            found["weights"] = weights.read_bytes()
        return found

    def _require_named_or_harmless(self, home: Path, right: dict[str, Any]) -> bool:
        found = self._read(home)
        status, said = found.pop("python")
        assert status in ([], "told"), f"wrong numbers in Python: {status}, {said}"
        for name, (status, said) in ((n, f) for n, f in found.items() if isinstance(f, list)):
            require_told(Ended(status, f"{name}: {said}", None, 0.0))
        for name in ("answers", "vectors", "weights"):
            assert name not in found or found[name] == right[name], f"other {name} than before"
        return found["verify"][0] != 0

    def _put_right(self, home: Path) -> None:
        """Repair what `verify` names, and run the experiments again; what is left wrong then is a record of a
        run, of which the message says what to do."""
        reference = self._whole
        named = forked(command("verify", "--json", "--home", home)).said
        assert "{" in named, f"verify does not go on: {named[:300]}"
        wheres = {p["where"] for p in json.loads(named[named.index("{") :])["problems"]}
        for where in sorted(w for w in wheres if not w.startswith("runs/")):
            require_told(forked(command("repair", where, "--home", home)))
        for name in ("first", "wide", "other") if wheres else ("wide",):
            require_told(forked(command("run", self.homes.experiment(name), "--home", home)))
        found = answer_of(lambda: _python(home, reference))
        assert found in ([], "told"), f"wrong numbers after a run: {found}"
        for problem in answer_of(lambda: problems_of(str(home))):
            of_a_run = f"{home}/runs/" in problem and any(a in problem for a in _ADVICE)
            assert of_a_run, f"left after repair and run: {problem}"


_ADVICE = ("run the experiment again", "delete", "put the file back")


def _said(work: Callable[[], object]) -> tuple[int, str]:
    """Status and words of a command in this process."""
    said, status = io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            work()
        except SystemExit as ending:
            status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        except Exception as error:
            return 99, f"Traceback: {type(error).__name__}: {error} {_where(error)}"
    return status, said.getvalue()


def _where(error: Exception) -> str:
    lines, trace = list[str](), error.__traceback__
    while trace is not None:
        if "permafrost" in (file := trace.tb_frame.f_code.co_filename) or "/storage/" in file:
            lines.append(f"{Path(file).name}:{trace.tb_lineno}")
        trace = trace.tb_next
    return " < ".join(reversed(lines[-5:]))


def _python(home: Path, reference: Path) -> list[str] | str:
    """What the front door and the readers give that is wrong; `told` where an error of ours says so."""
    try:
        opened = permafrost.open(home)
        for experiment in ("first", "wide"):
            if opened.results(experiment) != permafrost.open(reference).results(experiment):
                return [f"other results of {experiment}"]
        return differences(str(home), reference)
    except PermafrostError:
        return "told"
