"""What is installed holds every file that the code opens, not only what is Python."""

import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "stages", "storage")
FRONT = ("permafrost/__init__.py", "permafrost/py.typed")
USES = """
import permafrost.flows.cli
from pathlib import Path
from permafrost.stages.mteb_evaluation.instructions import suite_instructions
from permafrost.stages.report.html import page_digest
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
