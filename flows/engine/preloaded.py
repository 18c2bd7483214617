"""What a process has imported that Dask workers are forked from: a node then begins without seconds of
imports, and what they take of memory is there once.

Imported, and not run, by the server of `multiprocessing`, which takes names of modules only.
"""

import os
from importlib import import_module

from permafrost.flows.engine import in_worker as in_worker
from permafrost.flows.engine.cluster_process import USERS_PATH
from permafrost.flows.engine.late_imports import import_late_libraries

MODELS_AND_GRAPHS = ("transformers.modeling_utils", "torch_geometric.nn")
"""What loading any backbone and fitting any head on graphs imports."""

import_late_libraries(["extract"])
for _name in MODELS_AND_GRAPHS:
    import_module(_name)

# A program that a stage starts may be of another Python.
os.environ.pop("PYTHONPATH", None)
if users := os.environ.pop(USERS_PATH, ""):
    os.environ["PYTHONPATH"] = users
