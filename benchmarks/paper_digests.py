"""Digests of what a run of an experiment file scores, which tell whether the file has changed since."""

from collections.abc import Sequence
from pathlib import Path

from permafrost.flows.experiment import Experiment
from permafrost.flows.experiment_files.overrides import overridden
from permafrost.flows.experiment_files.yaml_reader import read_yaml
from permafrost.storage.errors import InputError
from permafrost.storage.keys import digest

UNSCORED = ("name", "codec", "runtime", "report")
"""Fields of an experiment that change no score; of `report`, those of `SCORED_IN_REPORT` do."""
SCORED_IN_REPORT = ("averages", "bootstrap")


def digest_of_rows(path: Path, changed: Sequence[str]) -> str | None:
    """Digest of the backbone, recipes, tasks, methods and other settings that a file is run with.

    Formatting, comments, anchors and the order of fields do not count; environment variables count by name.

    Args:
        path: YAML file.
        changed: what `--set` changes, as for `permafrost run`.

    Returns:
        32 hexadecimal digits, or None if the file does not take these changes.
    """
    try:
        fields = overridden(read_yaml(path.read_text(), str(path)), changed, Experiment).fields
    except InputError:
        return None
    report = fields.get("report", {})
    scored = {name: value for name, value in fields.items() if name not in UNSCORED}
    return digest([scored, {name: report[name] for name in SCORED_IN_REPORT if name in report}])
