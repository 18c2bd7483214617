"""What is installed holds every file that the code opens, not only what is Python."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "stages", "storage")
FRONT = ("permafrost/__init__.py", "permafrost/py.typed", "permafrost/demo.yaml")
USES = """
import permafrost.flows.cli
from pathlib import Path
from permafrost.stages.mteb_evaluation.instructions import suite_instructions
from permafrost.stages.report.page_files import page_digest
assert Path(permafrost.flows.cli.__file__).is_relative_to(Path.cwd()), permafrost.__file__
assert page_digest() and suite_instructions()
assert permafrost.open("nowhere").runs() == [] and permafrost.FrozenBackboneHead
"""


@pytest.fixture(scope="module")
def tracked() -> list[str]:
    """Files of the packages that git knows."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        pytest.skip("no git checkout")
    named = [*PACKAGES, *FRONT]
    names = subprocess.check_output(["git", "ls-files", *named], cwd=ROOT, text=True)
    return [name for name in names.splitlines() if (ROOT / name).exists()]


def installed(name: str) -> PurePosixPath:
    """Where a tracked file is installed: all but the front door's are reached through links."""
    return PurePosixPath(name if name in FRONT else f"permafrost/{name}")


def package_of(name: str) -> str:
    return ".".join(installed(name).parent.parts)


def test_every_file_that_is_no_python_is_package_data(tracked: list[str]) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    data: dict[str, list[str]] = settings["package-data"]
    others = [name for name in tracked if not name.endswith(".py")]
    assert FRONT[1] in others, "the types of the front door count for its users' type checkers"
    for name in others:
        patterns = data.get(package_of(name), [])
        assert any(PurePosixPath(name).match(pattern) for pattern in patterns), name
    for package, patterns in data.items():
        for pattern in patterns:
            assert any(
                package_of(name) == package and PurePosixPath(name).match(pattern)
                for name in others
            ), f"{package}: {pattern} is no file"


def test_every_folder_with_python_is_a_package(tracked: list[str]) -> None:
    folders = {PurePosixPath(name).parent for name in tracked}
    assert {str(f) for f in folders if f"{f}/__init__.py" not in tracked} == set()


@pytest.mark.deep
@pytest.mark.night
@pytest.mark.timeout(600)
def test_the_wheel_holds_every_file(tracked: list[str], tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in (*tracked, "pyproject.toml", "README.md", "LICENSE"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    for name in PACKAGES:
        (source / "permafrost" / name).symlink_to(f"../{name}")
    flags = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet"]
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", ".", *flags, "--wheel-dir", str(tmp_path)],
        cwd=source,
        check=True,
    )
    (wheel,) = tmp_path.glob("permafrost-*.whl")
    with zipfile.ZipFile(wheel) as file:
        held = set(file.namelist())
        assert {str(installed(name)) for name in tracked} <= held
        # Nothing of ours takes a name of a user's own packages.
        assert {name.split("/")[0].split("-")[0] for name in held} == {"permafrost"}
        file.extractall(tmp_path / "installed")
    used = subprocess.run(
        [sys.executable, "-c", USES],
        cwd=tmp_path / "installed",
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert used.returncode == 0, used.stderr
    _run_its_demo(tmp_path / "installed", tmp_path / "elsewhere")


def _run_its_demo(installed: Path, folder: Path) -> None:
    """The demo's experiment, from the wheel's own copy, in a small form; nothing is of this repository."""
    folder.mkdir()
    environment = os.environ | {
        "PYTHONPATH": str(installed),
        "PERMAFROST_CACHE": str(folder / "cache"),
        "PREFECT_HOME": str(folder / "prefect"),
    }
    call = [sys.executable, "-c", "import sys; from permafrost.flows.cli import main; main()"]

    def permafrost(*arguments: str) -> str:
        done = subprocess.run(
            [*call, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    (folder / "demo.yaml").write_text(permafrost("demo"))
    small = [
        "tasks={'ratio 0.9': {kind: dilution, signal: tiled, n_words: 80, gap: 3, n_train: 32, n_dev: 16, "
        "n_test: 16, ratio: 0.9, seed: 9}}",
        "seeds=[0]",
        "report.x_axis.values={ratio 0.9: 0.9}",
        "x-optim.max_epochs=1",
        "x-linear.max_epochs=1",
    ]
    flags = [f for s in small for f in ("--set", s)]
    said = permafrost("run", "demo.yaml", *flags, "--engine", "serial")
    assert "1 corpus, 1 extract" in said
    assert (folder / said.strip().splitlines()[-1]).is_file()


def test_version_changelog_and_tag_agree(tracked: list[str]) -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changes = (ROOT / "CHANGELOG.md").read_text()
    # The versions that it has, the latest first; until the first one is tagged it stands under Unreleased.
    named = re.findall(r"^(?:## \[)?(\d+\.\d+\.\d+)", changes, re.MULTILINE)
    assert named[0] == version
    tags = subprocess.check_output(["git", "tag", "--points-at", "HEAD"], cwd=ROOT, text=True)
    assert set(tags.split()) <= {f"v{version}"}


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [Requirement(line) for line in project["dependencies"]]


def test_what_is_installed_beside_us_has_a_range_and_our_own_environment_is_inside() -> None:
    pinned = dict(
        re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    )
    known = {str(canonicalize_name(name)): version for name, version in pinned.items()}
    for one in requirements():
        assert not {s.operator for s in one.specifier} & {"==", "==="}, f"{one} is an exact pin"
        assert one.specifier.contains(known[canonicalize_name(one.name)]), str(one)
    text = (ROOT / "Makefile").read_text()
    assert f"torch=={known['torch']}" in text, (
        "the first install has the version of the constraints"
    )


def test_no_module_beside_a_flow_hides_another() -> None:
    """Prefect runs a deployment with the folder of its flow's file first among those that imports look in."""
    others = sys.stdlib_module_names | packages_distributions().keys()
    assert not others & {
        path.stem for path in (ROOT / "flows").iterdir() if path.stem != "__init__"
    }


LOWEST = (
    *("transformers", "zarr", "prefect", "mteb", "torch-geometric", "peft", "numpy", "pyarrow"),
    *("scipy", "scikit-learn", "matplotlib", "rich", "datasets", "jaxtyping", "obstore"),
    *("dask", "distributed"),
)
"""Libraries whose lowest version is tried; of the others, the version of the constraints is the lowest."""
NEWEST = {"prefect": ("whenever",)}
"""Libraries of which there was a newer version than ours, and what that one needs besides."""
SMALL = """
name: small
backbone: {source: minilm}
capture: hidden=6@tokens
tasks:
  a: {kind: dilution, n_words: 80, gap: 3, n_train: 32, n_dev: 16, n_test: 16, ratio: 0.5, seed: 9}
methods:
  GLOT: {kind: head, head: {kind: glot, hidden: 32}, layer: hidden/6, optim: {max_epochs: 1, patience: null}}
  words: {kind: bag_of_words}
seeds: [0]
report: {title: Small, x_axis: {kind: tasks}}
"""


@pytest.mark.deep
@pytest.mark.install
@pytest.mark.timeout(600)
@pytest.mark.parametrize("end", ["lowest", "newest"])
def test_an_experiment_runs_with_the_ends_of_the_ranges(end: str, tmp_path: Path) -> None:
    ranges = {str(canonicalize_name(r.name)): r.specifier for r in requirements()}
    if end == "lowest":
        wanted = [f"{n}=={s.version}" for n in LOWEST for s in ranges[n] if s.operator == ">="]
    else:
        wanted = [x for n, more in NEWEST.items() for x in (f"{n}{ranges[n]}", *more)]
    beside = tmp_path / "beside"
    # Beside our environment and before it, so that nothing of it changes.
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
    got = subprocess.run(
        [*pip, "--target", str(beside), *wanted], capture_output=True, text=True, check=False
    )
    if got.returncode:
        pytest.skip(f"no package index has them: {got.stderr.strip().splitlines()[-1]}")
    (tmp_path / "small.yaml").write_text(SMALL)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from permafrost.flows.cli import main; main()",
            "run",
            "small.yaml",
        ],
        cwd=tmp_path,
        # A newer Prefect changes the database in its folder so that an older one cannot read it.
        env=os.environ
        | {
            "PYTHONPATH": f"{beside}{os.pathsep}{ROOT}",
            "PREFECT_HOME": str(tmp_path / "prefect"),
            "PERMAFROST_CACHE": str(tmp_path / "cache"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "computed: 1 corpus, 1 extract, 1 fit, 1 control, 1 score, 1 report" in " ".join(
        done.stdout.split()
    )
