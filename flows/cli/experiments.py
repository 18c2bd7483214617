"""`run`, `plan`, `report`: whole experiments."""

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from permafrost.flows.cli.common import (
    DEFAULT_HOME,
    HomeFlag,
    JsonFlag,
    SetFlag,
    WaitFlag,
    console,
    emit,
    existing_home,
    home_folder,
    say_path,
    seconds_since_start,
    size,
    table,
)
from permafrost.flows.engine_choice import parse_engine
from permafrost.flows.imports import kept_imports
from permafrost.flows.terminal import echo
from permafrost.storage.quoting import quoted

ExperimentArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="Experiment file (YAML).", show_default=False)
]

EngineFlag = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="What runs the nodes: serial, prefect, dask, or dask=tcp://host:8786 for an existing scheduler. "
        "Default: runtime.engine of the experiment, else prefect.",
        show_default=False,
    ),
]

MissingDataFlag = Annotated[
    Literal["refuse", "allow"],
    typer.Option(
        "--missing-data",
        help="Where data of tasks are not on this machine: refuse, or allow, which tells what can be told "
        "without them.",
    ),
]

_WAITING = ("runtime.extract.busy=wait",)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(run)
    app.command()(plan)
    app.command()(report)
    app.command()(demo)


def run(
    experiment: ExperimentArgument,
    set_: SetFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    engine: EngineFlag = None,
    wait: WaitFlag = False,
    json: JsonFlag = False,  # typer reads the default
) -> None:
    """Run the whole DAG; whatever is published already is reused."""
    if engine is not None:
        parse_engine(engine)
    # Imported here: torch takes seconds, and the listings do without.
    with kept_imports():
        from permafrost.flows.running import checked, computed_here, reused

    name, overrides = str(experiment), [*(set_ or []), *(_WAITING if wait else ())]
    found = checked(name, home, overrides)
    result = reused(found) or computed_here(found, engine)
    if result is None:
        # Prefect takes as long, and what ran above does without.
        with kept_imports():
            from permafrost.flows.pipeline import run_checked

        result = run_checked(found, name, home, overrides, engine)
    seconds = seconds_since_start()
    if json:
        emit(
            {
                "report": str(result.report),
                "run": result.run,
                "computed": result.computed,
                "reused": result.reused,
                "seconds": round(seconds, 3),
            }
        )
        return
    for results in result.tables(console):
        console.print(results, end="\n\n")
    for note in result.notes():
        console.print(note, markup=False, highlight=False)
    computed = ", ".join(f"{n} {stage}" for stage, n in result.computed.items())
    reused = ", ".join(f"{n} {stage}" for stage, n in result.reused.items())
    if computed:
        console.print(f"computed: {computed}" + (f"; reused: {reused}" if reused else ""))
    else:
        console.print(f"everything was reused ({reused}); no backbone was loaded")
    console.print(f"{seconds:.1f} s with starting, run {result.run}. Report:")
    say_path(result.report)


def plan(
    experiment: ExperimentArgument,
    set_: SetFlag = None,
    home: HomeFlag = DEFAULT_HOME,
    missing_data: MissingDataFlag = "refuse",
    json: JsonFlag = False,  # typer reads the default
) -> None:
    """Say what would run and why, tokens, bytes, time and free disk; writes nothing."""
    with kept_imports():
        from permafrost.flows.plan_experiment import plan_experiment

    planned = plan_experiment(experiment, set_ or [], home_folder(home), missing_data)
    if json:
        emit(planned.as_json())
        return
    steps = table("Stages", "stage", "n run", "n reuse", "why", "estimated time")
    times = {time.stage: str(time) for time in planned.times}
    for row in planned.rows:
        # That of the whole stage, once.
        told = times.pop(row.stage, "")
        steps.add_row(row.stage, str(row.n_run), str(row.n_reuse), row.why, told)
    console.print(steps)
    for task, n in planned.graphs.items():
        console.print(
            f"\ngraphs of {quoted(task)}: {n['n_graphs']:,} with {n['n_nodes']:,} nodes and {n['n_edges']:,} "
            f"edges; {n['n_labels']:,} different labels, {n['n_relations']:,} relations"
        )
        if equal := n.get("n_cases_with_equal_choices"):
            console.print(
                f"{equal:,} of {n['n_cases']:,} cases have two choices with the same text"
            )
    for note in planned.notes:
        console.print(f"\n{note}", markup=False)
    if planned.missing:
        console.print("\nnot here, so that the texts are not counted and all on them is to be run:")
        for why in dict.fromkeys(planned.missing.values()):
            tasks = ", ".join(quoted(t) for t, w in planned.missing.items() if w == why)
            console.print(f"  {tasks}: {why}", markup=False)
    if planned.as_published:
        console.print(
            f"\nnot here, and the hub cannot be reached: {', '.join(planned.as_published)}. Their sizes are "
            "those published, tokens are counted by the tokenizer of all-MiniLM-L6-v2, and what a run would "
            "reuse of their stores is not known"
        )
    missing = [e for e in planned.extractions if not e.nothing_to_do]
    if planned.hub_tasks:
        console.print(
            f"\ntexts of {len(planned.hub_tasks)} tasks from the hub are not counted: they are known once "
            f"they are loaded, and extracted then"
        )
    if not missing and planned.extractions:
        stores = ", ".join(e.store_id for e in planned.extractions)
        where = f"store {stores}" if len(planned.extractions) == 1 else f"stores {stores}"
        console.print(f"\nextraction: nothing missing in {where}; no backbone is loaded")
    for extraction in missing:
        about = "" if extraction.exact else "about "
        store = "a store" if planned.as_published else f"store {extraction.store_id}"
        if (backbone := planned.untrained.get(extraction.store_id)) is not None:
            store = (
                f"a store of the adapted backbone {quoted(backbone)}, its id known after training"
            )
        console.print(
            f"\nextraction into {store}: {extraction.n_new_texts:,} new of "
            f"{extraction.n_texts:,} texts, {about}{extraction.n_tokens:,} tokens{extraction.cut_text()}"
        )
        arrays = table("", "array", "size")
        for name, n_bytes in extraction.bytes_per_array.items():
            arrays.add_row(name, size(n_bytes))
        console.print(arrays)
    if missing:
        console.print(f"{planned.n_tokens:,} tokens in all")
    needed = ""
    if planned.n_bytes:
        left = planned.n_bytes_needed - planned.n_bytes
        needed = f" and {size(left)} left free, together {size(planned.n_bytes_needed)}"
    told = Text(f"to write {size(planned.n_bytes)}{needed}, free {size(planned.free_bytes)}: ")
    if not planned.fits:
        told += Text("does not fit", "bold red")
    elif planned.missing:
        told += Text("fits, without what is not counted")
    else:
        told += Text("fits")
    console.print(told)
    console.print(planned.time_text())
    bases = [f"{time.stage}: {time.basis}" for time in planned.times if time.basis]
    if bases:
        console.print(f"taken from {'; '.join(bases)}")


def report(
    experiment: ExperimentArgument,
    set_: SetFlag = None,
    home: HomeFlag = DEFAULT_HOME,  # typer reads the default
) -> None:
    """Build the HTML report again from finished results, and print its path."""
    with kept_imports():
        from permafrost.flows.build import build_graph
        from permafrost.flows.experiment_files.experiment_file import load_experiment
        from permafrost.flows.rebuild_report import rebuild_report

    nodes = build_graph(load_experiment(experiment, set_ or []))
    say_path(rebuild_report(nodes, existing_home(home)))


def demo() -> None:
    """Print the demo's experiment, a file to save and to run: permafrost demo > demo.yaml."""
    echo(resources.files("permafrost").joinpath("demo.yaml").read_text(encoding="utf-8"))
