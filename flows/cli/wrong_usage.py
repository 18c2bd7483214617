"""Messages of the command line's parser about wrong flags and arguments, shortened, some with a hint."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from permafrost.storage.quoting import shortened

_WrongUsage: Any = typer.BadParameter.__bases__[0]
"""What the parser raises; typer gives a name only to this one kind of it."""

_ELSEWHERE = {
    ("extract", "--layers"): "layers belong to what is captured there: --capture hidden=half",
}
"""By command and unknown flag."""


class Commands(TyperGroup):
    """Commands whose messages about wrong usage quote a value in part only."""

    def make_context(self, *args: Any, **extra: Any) -> Any:
        with _short_messages():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: Any) -> Any:
        with _short_messages():
            return super().invoke(ctx)


@contextmanager
def _short_messages() -> Generator[None]:
    try:
        yield
    except _WrongUsage as error:
        error.message = shortened(error.message) + _hint(error)
        raise


def _hint(error: Any) -> str:
    """Where what an unknown flag says belongs in its command; empty where nothing does."""
    command = "" if error.ctx is None else error.ctx.command.name
    hint = _ELSEWHERE.get((command, getattr(error, "option_name", "")))
    return "" if hint is None else f"; {hint}"
