"""Runs an experiment by the command line, which listens for signals.

python command_on_dask.py EXPERIMENT HOME ENGINE
"""

import sys

from permafrost.flows.cli import main
from permafrost.storage.features import store
from permafrost.storage.features.layout import Axes

# Many segments of few texts.
store.choose_axes = lambda *_: Axes(segment_tokens=256, segment_texts=32)
experiment, home, engine = sys.argv[1:]
sys.argv[1:] = ["run", experiment, "--home", home, "--engine", engine]
main()
