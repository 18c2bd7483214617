"""Every way by which code leads to other code is followed, and what imports bind counts."""

from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import permafrost
from permafrost.storage.fingerprint import fingerprint
from permafrost.storage.source_facts import source_facts
from tests.storage.code_packages import Package

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
            "reg": "from .table import T\nT['a'] = 1\n",
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
    "folder without an __init__": (
        {
            "main": "from PKG.loose import words\ndef run():\n    return words.helper()\n",
            "loose/words": "def helper():\n    return 1\n",
        },
        "loose/words",
    ),
    "attribute of a module in a folder without an __init__": (
        {
            "main": "import PKG.loose.words\ndef run():\n    return PKG.loose.words.helper()\n",
            "loose/words": "def helper():\n    return 1\n",
        },
        "loose/words",
    ),
    "module re-exported under another name": (
        {
            "main": "from PKG.inner import F\ndef run():\n    return F.helper()\n",
            "inner/__init__": "from . import functional as F\n",
            "inner/functional": "def helper():\n    return 1\n",
        },
        "inner/functional",
    ),
    "re-exported module in a table": (
        {
            "main": "from PKG.inner import F\nT = {'a': F}\ndef run():\n    return T\n",
            "inner/__init__": "import PKG.inner.functional as F\n",
            "inner/functional": "def helper():\n    return 1\n",
        },
        "inner/functional",
    ),
    "import with a definition for where it fails": (
        {
            "main": "try:\n    from PKG.far import f\nexcept ImportError:\n    def f():\n        return 0\n"
            "def run():\n    return f()\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
    "definition that an import replaces": (
        {
            "main": "def f():\n    return 0\nfrom PKG.far import f\ndef run():\n    return f()\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
    "import in the first of two branches": (
        {
            "main": "try:\n    from PKG.far import f\nexcept ImportError:\n    from PKG.near import f\n"
            "def run():\n    return f()\n",
            "near": "def f():\n    return 0\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
    "second of two star imports": (
        {
            "main": "from PKG.near import *\nfrom PKG.far import *\ndef run():\n    return f()\n",
            "near": "def f():\n    return 0\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
    "constant that the package around sets": (
        {
            "main": "from PKG.inner.core import f\ndef run():\n    return f()\n",
            "inner/__init__": "from . import core\ncore.SCALE = 1\n",
            "inner/core": "SCALE = 0\ndef f():\n    return SCALE\n",
        },
        "inner/__init__",
    ),
    "module named in a from-import for its effect": (
        {
            "main": "from PKG import patch\nfrom PKG.table import T\ndef run():\n    return T\n",
            "patch": "from .table import T\nT['a'] = 1\n",
            "table": "T = {}\n",
        },
        "patch",
    ),
    "module imported for its effect inside a function": (
        {
            "main": "from PKG.table import T\ndef run():\n    import PKG.patch\n    return T\n",
            "patch": "from .table import T\nT['a'] = 1\n",
            "table": "T = {}\n",
        },
        "patch",
    ),
    "module's name beside another function's own": (
        {
            "main": "from PKG.far import f\nclass run:\n    def a(self):\n        from PKG.near import f\n"
            "        return f()\n    def b(self):\n        return f()\n",
            "near": "def f():\n    return 0\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
    "type of a field in quotation marks": (
        {
            "main": "from PKG.far import Opts\nclass run:\n    o: 'list[Opts]'\n",
            "far": "class Opts:\n    x: int = 1\n",
        },
        "far",
    ),
    "import in a match": (
        {
            "main": "import sys\nmatch sys.platform:\n    case _:\n        from PKG.far import f\n"
            "def run():\n    return f()\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
    "import of a global name inside a function": (
        {
            "main": "def load():\n    global f\n    from PKG.far import f\n"
            "def run():\n    load()\n    return f()\n",
            "far": "def f():\n    return 1\n",
        },
        "far",
    ),
}


@pytest.mark.few(14)
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


def test_a_module_without_source_counts_by_its_bytes(package: Package) -> None:
    package.write("main", "def run():\n    from PKG.fast import f\n    return f()\n")
    path = package.folder / f"fast{EXTENSION_SUFFIXES[0]}"
    found: list[str] = []
    for content in (b"\x7fELF\xff 1", b"\x7fELF\xff 2"):
        path.write_bytes(content)
        found.append(package.fingerprint().digest)
    assert package.reached() == {"main:run", "fast:(compiled)"}
    assert found[0] != found[1]


def test_modules_that_take_all_of_each_other_end_and_lose_nothing(package: Package) -> None:
    package.write("near", "from PKG.far import *\ndef a():\n    return 1\n")
    package.write("far", "from PKG.near import *\ndef b():\n    return 2\n")
    package.write(
        "main", "from PKG import near, far\ndef run():\n    return far.a(), near.b(), near.a()\n"
    )
    assert package.reached() == {"main:run", "near:a", "far:b"}


def test_our_packages_do_nothing_when_they_are_imported() -> None:
    """So that keys need not follow what runs around our own modules."""
    rooms = [path.resolve() for path in Path(permafrost.__path__[0]).iterdir() if path.is_dir()]
    files = [path for room in rooms for path in room.rglob("__init__.py")]
    assert len(files) > 20
    for path in files:
        assert source_facts(path.read_text(), "permafrost.any", is_package=True).effects is None, (
            path
        )


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
