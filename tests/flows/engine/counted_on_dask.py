"""run_on_dask.py, with a note of what workers compute."""

import runpy
from pathlib import Path

from permafrost.flows.quiet import set_quiet_defaults


def main() -> None:
    # As the front door does before it imports Prefect.
    set_quiet_defaults()
    from permafrost.flows.engine import dask, segments
    from tests.flows.engine import counted

    dask.compute, segments.compute_segment_here = counted.compute, counted.compute_segment_here
    runpy.run_path(str(Path(__file__).with_name("run_on_dask.py")), run_name="__main__")


main()
