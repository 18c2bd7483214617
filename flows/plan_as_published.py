"""Planning with sizes as published, where neither a backbone's files nor the hub can be reached."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from permafrost.flows.build import build_graph
from permafrost.flows.checks import check
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.plan import Plan, make_plan
from permafrost.stages.extraction.files import BackboneConfig, find_backbone
from permafrost.stages.extraction.published import PUBLISHED, write_stand_in
from permafrost.storage.errors import HubUnreachableError


def plan_as_published(file: Path, overrides: Sequence[str], home: Path) -> Plan:
    """Plan an experiment some of whose backbones cannot be reached, by the sizes that are known of them.

    Tokens are counted with another tokenizer, and no store of such a backbone is found again, as its digest
    is not known: all of its stages count as to be run. Nothing is written but a temporary folder.

    Raises:
        HubUnreachableError: of a backbone whose sizes are not known.
        InputError: as of any plan.
    """
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

        nodes = build_graph(load_experiment(file, overrides, found))
        planned = make_plan(nodes, check(nodes, home))
    return replace(planned, as_published=tuple(folders))
