"""`across`: one table over runs with several backbones."""

from pathlib import Path
from typing import Annotated

import typer

from permafrost.flows.cli.common import DEFAULT_HOME, HomeFlag, JsonFlag, emit, existing_home
from permafrost.flows.terminal import echo
from permafrost.storage.errors import InputError
from permafrost.storage.paths import checked_path, require_writable
from permafrost.storage.quoting import quoted

_BETWEEN = ";"
_AVERAGED = "+"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(across)


def across(
    runs: Annotated[
        list[str],
        typer.Argument(
            help="Runs with a backbone each, as for compare: mine@2, or an experiment's name."
        ),
    ],
    methods: Annotated[
        list[str] | None,
        typer.Option(
            help="Rows, separated by semicolons; all that the runs share if not given. 'first token / last "
            "token', with spaces around the slash, is the first for encoders and the second for decoders. "
            "May be repeated."
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            help="A group of tasks over which standard scores are averaged: 'inference=MNLI-m+MNLI-mm;RTE', "
            "where tasks joined by + are averaged first. May be repeated; one of all tasks if not given."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder for across.md, across.json and figures."),
    ] = None,
    home: HomeFlag = DEFAULT_HOME,
    json: JsonFlag = False,
) -> None:
    """Put runs with several backbones into one table, with standard scores and figures over sizes."""
    # Imported here: other commands need none of it.
    from permafrost.flows.comparison.across_files import as_json, tables_of, write_across
    from permafrost.flows.comparison.across_runs import read_across
    from permafrost.stages.report.across import require_groups
    from permafrost.stages.report.markup import to_markdown

    if output is not None and (output.exists() or output.is_symlink()) and not output.is_dir():
        raise InputError(
            f"--output {output} is a file, and what is written are several; name a folder"
        )
    if output is not None:
        require_writable(checked_path(output, "--output"), "the tables")
    found, remarks = read_across(runs, existing_home(home), _listed(_BETWEEN.join(methods or [])))
    groups = _groups(group or []) or {"all tasks": [[task] for task in found.tasks]}
    require_groups(groups, found.tasks)
    if output is not None:
        write_across(found, groups, remarks, output)
    if json:
        emit(as_json(found, groups, remarks))
        return
    echo(to_markdown(tables_of(found, groups)), end="")
    for remark in remarks:
        echo(f"\n{remark}")
    if output is not None:
        echo(f"\nwrote {output}")


def _listed(names: str) -> list[str]:
    return [name for part in names.split(_BETWEEN) if (name := part.strip())]


def _groups(written: list[str]) -> dict[str, list[list[str]]]:
    found: dict[str, list[list[str]]] = {}
    for one in written:
        name, members = _group(one)
        if name in found:
            raise InputError(f"--group names the group {quoted(name)} twice; name every group once")
        tasks = [task for member in members for task in member]
        if twice := [task for task in tasks if tasks.count(task) > 1]:
            raise InputError(
                f"--group {quoted(one)} has the task {quoted(twice[0])} twice; name every task once"
            )
        found[name] = members
    return found


def _group(written: str) -> tuple[str, list[list[str]]]:
    name, equals, tasks = written.partition("=")
    members = [[t.strip() for t in one.split(_AVERAGED)] for one in _listed(tasks)]
    if not equals or not name.strip() or not members:
        raise InputError(
            f"--group {quoted(written)} is not of the form 'name=TASK;TASK+TASK'; name a group and its tasks"
        )
    return name.strip(), members
