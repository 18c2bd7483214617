"""The files that an experiment names, as they are now: whether one was written between two looks at it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages.corpus.data_files import files_of_pattern
from permafrost.storage.errors import InputError
from permafrost.storage.file_marks import marks_of

Stamps = frozenset[tuple[str, tuple[int, ...]]]
"""Path and marks of files."""


def stamps(experiment: str | dict[str, Any], overrides: Sequence[str] = ()) -> Stamps:
    """Of every file that tasks and evaluations of an experiment name, by its path, its folder or a pattern,
    and of the experiment's own; of that alone if it cannot be read.

    Args:
        experiment: path of the experiment file, or its fields.
        overrides: changes of it, `path.to.field=value` each.
    """
    own = [experiment] if isinstance(experiment, str) else []
    source = Path(experiment) if isinstance(experiment, str) else experiment
    try:
        found = load_experiment(source, overrides)
    except InputError:
        named = own
    else:
        sections = (*found.tasks.values(), *found.evaluations.values())
        # Whatever the kind of a source calls it: a text that is no file's name adds nothing.
        named = [*own, *(text for s in sections for text in _texts(s.model_dump(mode="json")))]
    return frozenset(stamp for name in named for stamp in _of_name(name))


def _texts(value: Any) -> Iterator[str]:
    """All texts in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _texts(part)


def _of_name(name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    path = Path(name)
    try:
        files = path.rglob("*") if path.is_dir() else (path, *files_of_pattern(path))
        for file in files:
            if file.is_file():
                yield str(file), marks_of(file.stat())
    except (OSError, ValueError):
        return  # no name of a file, or one that has just gone
