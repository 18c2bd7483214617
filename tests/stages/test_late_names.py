"""Packages give the names that they list, and import what defines one when it is asked for."""

import subprocess
import sys
from importlib import import_module
from types import ModuleType

import pytest

PACKAGES = (
    *("embed", "encoder", "extraction.recipes", "finetune.losses", "fit", "fit.losses", "freeze"),
    *("linear", "mteb_evaluation", "probes", "sensitivity", "token_prediction"),
)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_gives_every_name_that_it_lists(package: str) -> None:
    module = import_module(f"permafrost.stages.{package}")
    for name in module.__all__:
        assert not isinstance(getattr(module, name), ModuleType), f"{package}.{name} is a module"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = module.nothing


def test_only_what_is_asked_for_is_imported() -> None:
    program = (
        "import sys; from permafrost.stages.fit import FitConfig;"
        "assert 'torch' not in sys.modules;"
        "from permafrost.stages.fit import load_head; assert 'torch' in sys.modules;"
        "print(load_head.__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "permafrost.stages.fit.trained"
