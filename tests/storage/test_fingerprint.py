"""Every case is a small package on disk, fingerprinted before and after an edit."""

import importlib
import os
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest

from permafrost.storage import fingerprint as module
from permafrost.storage.errors import InputError
from permafrost.storage.fingerprint import CodeFingerprint, fingerprint

_serial = count()


def forget() -> None:
    """As in a new process."""
    for known in (module._MODULES, module._IS_MODULE, module._RESOLVED, module._FINGERPRINTS):
        known.clear()


class Package:
    """A package whose files can be edited, and the fingerprint of its `main.run`."""

    def __init__(self, folder: Path) -> None:
        self.name = f"proj{next(_serial)}"
        self.folder = folder / self.name
        self.write("__init__", "")

    def write(self, name: str, source: str) -> None:
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source).replace("PKG", self.name))

    def edit(self, name: str, old: str, new: str) -> None:
        path = self.folder / f"{name}.py"
        source = path.read_text()
        assert source.count(old) == 1
        path.write_text(source.replace(old, new))

    def fingerprint(self) -> CodeFingerprint:
        forget()
        module._LOADED.clear()
        importlib.invalidate_caches()
        for loaded in [m for m in sys.modules if m.split(".")[0] == self.name]:
            del sys.modules[loaded]
        return fingerprint(importlib.import_module(f"{self.name}.main").run, [self.name])

    def reached(self) -> set[str]:
        return {d.removeprefix(f"{self.name}.") for d in self.fingerprint().definitions}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield Package(tmp_path)
    forget()


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


CASES: dict[str, tuple[dict[str, str], str]] = {
    "re-export through a package": (
        {
            "main": "from PKG.inner import helper\ndef run():\n    return helper()\n",
            "inner/__init__": "from PKG.inner.core import helper\n",
            "inner/core": "def helper():\n    return 1\n",
        },
        "inner/core",
    ),
    "import under another name": (
        {
            "main": "import PKG.far as f\ndef run():\n    return f.helper()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "function under another name": (
        {
            "main": "from PKG.far import helper as h\ndef run():\n    return h()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "attribute of a dotted module": (
        {
            "main": "import PKG.far\ndef run():\n    return PKG.far.helper()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "attribute of a module imported from its package": (
        {
            "main": "from PKG import far\ndef run():\n    return far.helper()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "relative import": (
        {
            "main": "from .far import helper\ndef run():\n    return helper()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "method of a class": (
        {
            "main": "from PKG.far import Thing\ndef run():\n    return Thing().go()\n",
            "far": "class Thing:\n    def go(self):\n        return 1\n",
        },
        "far",
    ),
    "base class": (
        {
            "main": "from PKG.far import Base\nclass C(Base):\n    pass\ndef run():\n    return C()\n",
            "far": "class Base:\n    def go(self):\n        return 1\n",
        },
        "far",
    ),
    "decorator": (
        {
            "main": "from PKG.far import twice\n@twice\ndef run():\n    return 0\n",
            "far": "def twice(f):\n    f.n = 1\n    return f\n",
        },
        "far",
    ),
    "default argument": (
        {
            "main": "from PKG.far import N\ndef run(n=N):\n    return n\n",
            "far": "N = 1\n",
        },
        "far",
    ),
    "member of a table": (
        {
            "main": "from PKG.far import member\nTABLE = {'a': member}\n"
            "def run(k='a'):\n    return TABLE[k]()\n",
            "far": "def member():\n    return 1\n",
        },
        "far",
    ),
    "import inside a function": (
        {
            "main": "def run():\n    from PKG.far import helper\n    return helper()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "relative import inside a function": (
        {
            "main": "def run():\n    from .far import helper\n    return helper()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "dotted import inside a function": (
        {
            "main": "def run():\n    import PKG.far\n    return PKG.far.helper()\n",
            "far": "def helper():\n    return 1\n",
        },
        "far",
    ),
    "function with the name of its module": (
        {
            "main": "from PKG.sub import far\ndef run():\n    return far()\n",
            "sub/__init__": "from PKG.sub.far import far\n",
            "sub/far": "def far():\n    return helper()\ndef helper():\n    return 1\n",
        },
        "sub/far",
    ),
    "function with the name of its module, inside a function": (
        {
            "main": "def run():\n    from PKG.sub import far\n    return far()\n",
            "sub/__init__": "from .far import far\n",
            "sub/far": "def far():\n    return 1\n",
        },
        "sub/far",
    ),
    "module that its package imports": (
        {
            "main": "from PKG.sub import far\ndef run():\n    return far.helper()\n",
            "sub/__init__": "from PKG.sub import far\n",
            "sub/far": "def helper():\n    return 1\n",
        },
        "sub/far",
    ),
    "registration at import": (
        {
            "main": "from PKG.far import lookup\ndef run():\n    return lookup()\n",
            "far": "T = {}\ndef a():\n    return 1\nT['a'] = a\ndef lookup():\n    return T['a']()\n",
        },
        "far",
    ),
    "import effect": (
        {
            "main": "from PKG.far import f\ndef run():\n    return f()\n",
            "far": "import sys\ndef f():\n    return sys.n\nsetattr(sys, 'n', 1)\n",
        },
        "far",
    ),
    "definition inside a top-level if": (
        {
            "main": "from PKG.far import f\ndef run():\n    return f()\n",
            "far": "if True:\n    def f():\n        return 1\n",
        },
        "far",
    ),
    "import inside a top-level try": (
        {
            "main": "try:\n    from PKG.far import f\nexcept ImportError:\n    f = None\n"
            "def run():\n    return f()\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
    "import of everything": (
        {
            "main": "from PKG.far import *\ndef run():\n    return a()\n",
            "far": "def a():\n    return 1\n",
        },
        "far",
    ),
    "one of two imports of a name inside a function": (
        {
            "main": "def run(x=0):\n    if x:\n        from PKG.far import f\n    else:\n"
            "        from PKG.near import f\n    return f()\n",
            "far": "def f():\n    return 1\n",
            "near": "def f():\n    return 3\n",
        },
        "far",
    ),
    "module as a value": (
        {
            "main": "from PKG import far\nT = {'x': far}\ndef run():\n    return T['x'].a()\n",
            "far": "def a():\n    return 1\n",
        },
        "far",
    ),
    "module as a value inside a function": (
        {
            "main": "def run():\n    import PKG.far as far\n    return vars(far)\n",
            "far": "def a():\n    return 1\n",
        },
        "far",
    ),
    "module that is imported for what it registers": (
        {
            "main": "import PKG.reg\nfrom PKG.table import T\ndef run():\n    return T\n",
            "reg": "from PKG.table import T\nT['a'] = 1\n",
            "table": "T = {}\n",
        },
        "reg",
    ),
    "augmented table": (
        {
            "main": "from PKG.far import T\ndef run():\n    return T\n",
            "far": "T = [0]\nT += [1]\n",
        },
        "far",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_change_is_found_through(package: Package, case: str) -> None:
    files, edited = CASES[case]
    for name, source in files.items():
        package.write(name, source)
    before = package.fingerprint().digest
    package.edit(edited, "1", "2")
    assert package.fingerprint().digest != before


BOUND = {
    "another function of a library": ("from math import floor as r", "from math import ceil as r"),
    "another library": ("from math import floor as r", "from numpy import floor as r"),
    "two names that change places": (
        "from PKG.far import a as r, b as other",
        "from PKG.far import b as r, a as other",
    ),
    "another module": ("import math as r", "import cmath as r"),
}


@pytest.mark.parametrize("case", BOUND)
def test_what_an_import_binds_counts(package: Package, case: str) -> None:
    before, after = BOUND[case]
    package.write("far", "def a():\n    return 1\ndef b():\n    return 2\n")
    found: list[str] = []
    for bound in (before, after):
        package.write("main", f"{bound}\nother = None\ndef run():\n    return r, other\n")
        found.append(package.fingerprint().digest)
    assert found[0] != found[1]


def test_a_definition_has_the_same_digests_from_wherever_it_is_reached(package: Package) -> None:
    """What several entries reach is put together, and the code of a trained head is compared by its class."""
    package.write(
        "far", "import json, math\ndef a():\n    return math\ndef b():\n    return json\n"
    )
    package.write("main", "from PKG import far\ndef run():\n    return far.a(), far.b()\n")
    both = package.fingerprint().definitions
    for name in ("a", "b"):
        alone = fingerprint(f"{package.name}.far:{name}", [package.name]).definitions
        assert alone.items() <= both.items()
        assert len(alone) == 1


def test_a_digest_of_an_earlier_version_says_nothing_of_imports(package: Package) -> None:
    package.write("main", "from math import floor as r\ndef run():\n    return r\n")
    found = package.fingerprint()
    (name,), (now,) = found.definitions, found.definitions.values()
    own, _, bound = now.partition("+")
    assert (len(own), len(bound)) == (16, 8)
    assert not found.is_other(name, now)
    assert not found.is_other(name, own)
    assert found.is_other(name, f"{own}+{'0' * 8}")
    assert found.is_other(name, f"{'0' * 16}+{bound}")
    assert found.is_other(name, "0" * 16)


def test_imports_that_are_not_mentioned_and_their_order_do_not_count(package: Package) -> None:
    found: list[str] = []
    for imports in ("import math\nimport json", "import json\nimport math\nimport csv"):
        package.write("main", f"{imports}\ndef run():\n    return math.pi, json\n")
        found.append(package.fingerprint().digest)
    assert found[0] == found[1]


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
    assert package.reached() == {"main:run", "heavy.deep:step"}


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
