"""Planning an experiment from its file: also where a backbone, or data, cannot be had on this machine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from permafrost.flows.build import build_graph
from permafrost.flows.data_lookup import LookupForPlans, MissingData
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.plan import Plan, make_plan
from permafrost.flows.running import check_showing
from permafrost.stages.extraction.files import BackboneConfig, find_backbone
from permafrost.stages.extraction.published import PUBLISHED, write_stand_in
from permafrost.storage.errors import HubUnreachableError, InputError
from permafrost.storage.quoting import quoted


def plan_experiment(
    source: Path | Mapping[str, Any],
    overrides: Sequence[str],
    home: Path,
    missing_data: MissingData = "refuse",
) -> Plan:
    """What a run would do; nothing is written but a temporary folder.

    A backbone that is neither here nor to be had from the hub is planned by the sizes that its authors
    published, if they are known: tokens are then counted with another tokenizer, and no store of such a
    backbone is found again, as its digest is not known.

    Args:
        source: YAML file, or the same fields in a mapping.
        overrides: `path.to.field=value` each.
        home: that it would be run in.
        missing_data: `refuse` or `allow`; with `allow` the texts of such tasks are not counted, and
            everything on them counts as to be run.

    Raises:
        HubUnreachableError: of a backbone whose sizes are not known.
        InputError: what a run would refuse before it starts, or `missing_data` is neither.
    """
    options = get_args(MissingData)
    if missing_data not in options:
        raise InputError(f"missing_data is {quoted(missing_data)}, expected {' or '.join(options)}")

    def read(found: Callable[[str], str]) -> Plan:
        lookup = LookupForPlans(missing_data)
        nodes = build_graph(load_experiment(source, overrides, found, lookup.variable), lookup)
        return replace(make_plan(nodes, check_showing(nodes, home)), missing=lookup.missing)

    try:
        return read(str)
    except HubUnreachableError:
        return _as_published(read)


def _as_published(read: Callable[[Callable[[str], str]], Plan]) -> Plan:
    with TemporaryDirectory(prefix="permafrost-plan-") as scratch:
        folders: dict[str, str] = {}

        def found(name: str) -> str:
            if name in PUBLISHED and name not in folders:
                try:
                    find_backbone(BackboneConfig(source=name))
                except HubUnreachableError:
                    folder = Path(scratch, str(len(folders)))
                    write_stand_in(name, folder)
                    folders[name] = str(folder)
            return folders.get(name, name)

        return replace(read(found), as_published=tuple(folders))
