"""Every case is a small package on disk, fingerprinted before and after an edit."""

import importlib
import os
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from permafrost.storage import fingerprint as module
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import CodeFingerprint, fingerprint
from tests.storage.code_packages import Package, forget

FAR = """
    SCALE = 2

    def deep(x):
        return x * SCALE

    def bystander(x):
        return x
"""


@pytest.fixture
def chain(package: Package) -> Package:
    """run -> near.step -> far.deep -> far.SCALE."""
    package.write("main", "from PKG.near import step\n\ndef run(x):\n    return step(x)\n")
    package.write("near", "from PKG.far import deep\n\ndef step(x):\n    return deep(x) + 1\n")
    package.write("far", FAR)
    return package


def test_everything_reached_is_listed_and_nothing_else(chain: Package) -> None:
    assert chain.reached() == {"main:run", "near:step", "far:deep", "far:SCALE"}


def test_comments_docstrings_and_formatting_do_not_count(chain: Package) -> None:
    before = chain.fingerprint()
    chain.write(
        "far",
        '''
        """A module docstring."""

        SCALE = (  # why two
            2
        )
        """What it scales."""

        def deep(
            x,
        ):
            """Multiply."""
            # for a reason

            return (x
                    * SCALE)
        ''',
    )
    assert chain.fingerprint() == before


def test_field_documentation_of_a_class_does_not_count(package: Package) -> None:
    package.write("main", "class C:\n    a: int = 1\n\ndef run():\n    return C\n")
    before = package.fingerprint()
    package.edit("main", "    a: int = 1\n", '    """Doc."""\n\n    a: int = 1\n    """Field."""\n')
    assert package.fingerprint() == before


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("SCALE = 2", "SCALE = 3", "far:SCALE"),
        ("return x * SCALE", "return SCALE * x", "far:deep"),
        ("def deep(x)", "def deep(x, y=0)", "far:deep"),
    ],
)
def test_a_change_two_modules_away_counts_and_is_named(
    chain: Package, old: str, new: str, named: str
) -> None:
    before = chain.fingerprint()
    chain.edit("far", old, new)
    after = chain.fingerprint()
    assert after.digest != before.digest
    changed = {d for d, v in after.definitions.items() if before.definitions.get(d) != v}
    assert changed == {f"{chain.name}.{named}"}


def test_a_function_that_is_not_reached_does_not_count(chain: Package) -> None:
    before = chain.fingerprint()
    chain.edit("far", "def bystander(x):\n    return x", "def bystander(x):\n    return -x")
    chain.write("unused", "def other():\n    return 1\n")
    assert chain.fingerprint() == before


def test_code_outside_the_packages_does_not_count(package: Package) -> None:
    package.write(
        "main", "import json\nfrom pathlib import Path\n\ndef run():\n    return json, Path\n"
    )
    assert package.reached() == {"main:run"}


def test_functions_that_call_each_other_end(package: Package) -> None:
    package.write(
        "main",
        """
        def run(n):
            return other(n - 1) if n else 0

        def other(n):
            return run(n)
        """,
    )
    assert package.reached() == {"main:run", "main:other"}


def test_modules_that_import_each_other_end(package: Package) -> None:
    package.write("main", "import PKG.far\n\ndef run():\n    return PKG.far.back()\n")
    package.write("far", "import PKG.main\n\ndef back():\n    return PKG.main.run()\n")
    assert package.reached() == {"main:run", "far:back"}


def test_an_entry_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(AssertionError, match="not defined at the top level"):
        fingerprint(textwrap.dedent, ["permafrost.storage"])


def test_a_method_stands_for_its_class() -> None:
    found = fingerprint(CodeFingerprint.digest.fget, ["permafrost.storage"])  # type: ignore[arg-type]
    assert "permafrost.storage.fingerprint:CodeFingerprint" in found.definitions
    assert "permafrost.storage.keys:to_plain" in found.definitions


def test_a_file_that_changed_after_it_was_loaded_has_no_fingerprint(chain: Package) -> None:
    chain.fingerprint()
    near = chain.folder / "near.py"
    near.write_text(near.read_text().replace("+ 1", "+ 2"))
    later = time.time() + 0.01
    os.utime(near, (later, later))
    time.sleep(0.02)
    forget()
    run = sys.modules[f"{chain.name}.main"].run
    with pytest.raises(InputError, match=r"near\.py was changed after .* start Python again"):
        fingerprint(run, [chain.name])


def test_a_source_that_was_given_counts_and_not_the_file(chain: Package) -> None:
    before = chain.fingerprint()
    source = (chain.folder / "near.py").read_text()
    run = sys.modules[f"{chain.name}.main"].run
    module.use_source(f"{chain.name}.near", source.replace("+ 1", "+ 2"))
    edited = fingerprint(run, [chain.name])
    assert edited.digest != before.digest
    module.use_source(f"{chain.name}.near", source)
    assert fingerprint(run, [chain.name]).digest == before.digest


def test_what_is_reached_by_imports_inside_functions_is_read_and_not_imported(
    package: Package,
) -> None:
    package.write("main", "def run(x):\n    from PKG.heavy.deep import step\n    return step(x)\n")
    package.write("heavy/__init__", "raise RuntimeError('seconds')\n")
    package.write("heavy/deep", "import torch\n\ndef step(x):\n    return torch.relu(x)\n")
    assert package.reached() == {"main:run", "heavy.deep:step", "heavy:(import effects)"}


def late(package: Package) -> CodeFingerprint:
    package.write("main", "def run(x):\n    from PKG.late import step\n    return step(x)\n")
    package.write("late", "def step(x):\n    return x\n")
    found = package.fingerprint()
    assert f"{package.name}.late" not in sys.modules
    return found


def test_what_is_imported_late_is_loaded_before_it_runs(package: Package) -> None:
    module.load(late(package).definitions)
    assert f"{package.name}.late" in sys.modules


def test_threads_import_one_after_the_other(package: Package) -> None:
    """Two at once have left half a module to each other (Python 3.11.7, with a hook that checks types)."""
    late(package)
    for name in ("one", "two"):
        package.write(
            name,
            f"import time\nbegun = time.time()\ntime.sleep(0.1)\nname = '{name}'\nended = time.time()\n",
        )
    importlib.invalidate_caches()
    names = [f"{package.name}.{name}" for name in ("one", "two")]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: module.load([f"{name}:name"]), names))
    first, last = sorted((sys.modules[name] for name in names), key=lambda m: m.begun)
    assert first.ended <= last.begun


def test_an_edit_between_fingerprint_and_import_is_refused(package: Package) -> None:
    found = late(package)
    package.edit("late", "return x", "return -x")
    after = time.time() + 1
    os.utime(package.folder / "late.py", (after, after))
    with pytest.raises(InputError, match="changed before this process had loaded it"):
        module.load(found.definitions)


def test_a_function_is_fingerprinted_by_its_import_path_without_importing_it(
    chain: Package,
) -> None:
    by_path = fingerprint(f"{chain.name}.main:run", [chain.name])
    assert f"{chain.name}.main" not in sys.modules
    assert by_path == chain.fingerprint()
