"""Runs an experiment as a script of a user's would: with no main guard, as workers must not run it again.

python run_on_dask.py EXPERIMENT HOME ENGINE
"""

import sys

import permafrost
from permafrost.storage.features import store
from permafrost.storage.features.layout import Axes

# Many segments of few texts.
store.choose_axes = lambda *_: Axes(segment_tokens=256, segment_texts=32)
sys.stdout.write("the script runs\n")
result = permafrost.run(sys.argv[1], home=sys.argv[2], engine=sys.argv[3])
sys.stdout.write(f"{dict(result.computed)}\n")
