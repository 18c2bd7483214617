"""The report of a run in which some nodes failed: the rest of the results, with the gaps marked."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from permafrost.flows.build import ExperimentGraph
from permafrost.flows.context import RunContext
from permafrost.flows.engine.schedule import Outcome
from permafrost.flows.records.runs import gaps_folder, remove_gaps
from permafrost.storage.drafts import draft_path
from permafrost.storage.errors import PermafrostError


def report_with_gaps(
    nodes: ExperimentGraph, context: RunContext, outcomes: Mapping[str, Outcome]
) -> Path | None:
    """Write the report and return its path; None if there are no results at all, or it cannot be written.

    No error of its own takes the place of what the nodes failed of; one that is not expected is a note there.
    It lies beside the run records and is not published, as a published report would count as done for ever.
    Other runs of the experiment may write and remove theirs meanwhile.
    """
    results = [*nodes.results.values(), *nodes.evaluations.values()]
    if not any(context.artifacts.is_done(node.ref) for node in results):
        return None
    # Imported here, as what draws takes a second.
    from permafrost.flows.nodes.report_writing import write

    home, name = context.home, nodes.experiment.name
    folder = gaps_folder(home, name)
    draft = draft_path(folder)
    try:
        draft.mkdir(parents=True)
        write(nodes.report, context, draft, _sentences(nodes, outcomes))
        remove_gaps(home, name)
        draft.rename(folder)
    except (PermafrostError, OSError):
        # Often what the nodes failed of as well, a full disk: they are to be told of, not this. Or another
        # run of this experiment has failed in the same moment, and its report is as good.
        return None
    except Exception as error:
        # Whatever it is, it comes after what the nodes failed of.
        for failed in (o.error for o in outcomes.values() if o.error is not None):
            failed.add_note(
                f"no report of the rest could be written ({type(error).__name__}: {_first_line(error)})"
            )
        return None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return folder / "report.html"


def _sentences(nodes: ExperimentGraph, outcomes: Mapping[str, Outcome]) -> list[str]:
    failed = [o for o in outcomes.values() if o.state == "failed"]
    # By id: the graph's nodes are copies.
    skipped = [
        o for o in outcomes.values() if o.state == "skipped" and o.node.id != nodes.report.id
    ]
    sentences = [f"This run did not finish: {_stages(len(failed))} failed, {len(skipped)} skipped."]
    sentences += [f"Failed: {o.node.label} ({_first_line(o.error)})." for o in failed]
    for outcome in skipped:
        assert outcome.because is not None, "a skipped node has a cause"
        sentences.append(f"Missing: {outcome.node.label}, which needs {outcome.because.label}.")
    return sentences


def _stages(n: int) -> str:
    return f"{n} stage{'' if n == 1 else 's'}"


def _first_line(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
