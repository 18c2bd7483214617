"""Experiments from YAML files: overrides, environment variables, and errors that name the field."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from permafrost.flows.experiment import Experiment
from permafrost.flows.experiment_files.overrides import overridden, require_no_grid_instead
from permafrost.flows.experiment_files.plain_document import plain_document
from permafrost.flows.experiment_files.yaml_reader import MAX_FILE_BYTES, read_yaml
from permafrost.stages.wrong_fields import (
    booleans_for_numbers,
    field_errors,
    wrong_fields,
)
from permafrost.storage.errors import InputError
from permafrost.storage.paths import checked_path


def required_variable(name: str, where: str) -> str:
    """The value of an environment variable.

    Args:
        name: of the variable.
        where: it stands in the experiment.

    Raises:
        InputError: it is not set.
    """
    if name not in os.environ:
        raise InputError(f"{where} needs the environment variable {name}, which is not set")
    return os.environ[name]


def load_experiment(
    source: Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    found: Callable[[str], str] = str,
    variable: Callable[[str, str], str] = required_variable,
) -> Experiment:
    """Read and validate an experiment; for the values in a file see `read_yaml`.

    `${NAME}` in a string is replaced by the environment variable; relative paths of corpora are relative to
    the working folder. Top-level keys that begin with `x-` are a place for YAML anchors and no fields.

    Args:
        source: YAML file, or the same fields in a mapping.
        overrides: `path.to.field=value` each, the value in YAML. One inside an `x-` key changes every place
            that refers to the mapping or list there or merges it; any other changes its own place alone,
            aliases or not. Those of `x-` keys come first.
        found: where the backbone of a name is to be read; as it is named if not given.
        variable: the value of an environment variable, by its name and where it stands.

    Raises:
        InputError: the file is unreadable, or fields are unknown or wrong; the message has the path and value
            of each.
    """
    if isinstance(source, Mapping):
        where, document = "the experiment", plain_document(source, "the experiment")
    else:
        where, document = str(source), read_yaml(_text(source), str(source))
    if not isinstance(document, dict):
        what = "is empty" if document is None else f"holds {type(document).__name__}"
        raise InputError(f"{where} {what}, expected fields such as name, tasks")
    changed = overridden(document, overrides, Experiment)
    fields = _found(_expanded(changed.fields, "$", variable), found)
    try:
        experiment = Experiment.model_validate(fields)
    except ValidationError as error:
        n = len(field_errors(error))
        raise InputError(
            f"{where} has {n} wrong field(s):\n  {wrong_fields(error, Experiment, fields)}"
        ) from error
    if wrong := booleans_for_numbers(experiment, fields):
        lines = "\n  ".join(wrong)
        raise InputError(f"{where} has {len(wrong)} wrong field(s):\n  {lines}")
    require_no_grid_instead(fields, overrides, changed.changed)
    return experiment


def _text(path: Path) -> str:
    checked_path(path, "the experiment file")
    if not path.exists():
        raise InputError(f"there is no experiment file {path}")
    if not path.is_file():
        # A device or a pipe may have no end, and the file is read twice.
        raise InputError(f"{path} is not a readable YAML file: it is not a regular file")
    if (n_bytes := path.stat().st_size) > MAX_FILE_BYTES:
        raise InputError(
            f"{path} has {n_bytes:,} bytes; an experiment file has at most {MAX_FILE_BYTES:,}"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is not a readable YAML file: {error}") from error


def _found(value: Any, found: Callable[[str], str]) -> Any:
    """Every backbone, `{source: NAME, ...}`, where it is to be read."""
    if isinstance(value, dict):
        return {
            k: found(v) if k == "source" and isinstance(v, str) else _found(v, found)
            for k, v in value.items()
        }
    return [_found(v, found) for v in value] if isinstance(value, list) else value


def _expanded(value: Any, where: str, variable: Callable[[str, str], str]) -> Any:
    if isinstance(value, dict):
        return {k: _expanded(v, f"{where}.{k}", variable) for k, v in value.items()}
    if isinstance(value, list):
        return [_expanded(v, f"{where}[{i}]", variable) for i, v in enumerate(value)]
    if not isinstance(value, str):
        return value
    return re.sub(r"\$\{(\w+)\}", lambda match: variable(match[1], where), value)
