"""docker/ in the eyes of those who know the formats: hadolint and the Compose specification's own schema."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker.dockerfile import DOCKERFILE
from tests.docker.plain_processes import COMPOSE

pytestmark = pytest.mark.deep


def program(name: str) -> str:
    """A tool that `make test-deep` installs."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: `make test-deep` installs it")
    return found


def says(*command: str) -> str:
    """What a tool finds; nothing, if all is well."""
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr or "failed in silence"


def test_hadolint_finds_nothing_and_would(tmp_path: Path) -> None:
    hadolint = program("hadolint")
    assert says(hadolint, str(DOCKERFILE)) == ""
    worse = tmp_path / "Dockerfile"
    worse.write_text(DOCKERFILE.read_text().replace("USER 1000:0", "USER root"))
    assert "DL3002" in says(hadolint, str(worse))


def test_the_compose_file_is_valid_and_a_wrong_one_would_not_be(tmp_path: Path) -> None:
    check = [program("check-jsonschema"), "--builtin-schema", "vendor.compose-spec"]
    assert says(*check, str(COMPOSE)) == ""
    worse = tmp_path / "compose.yaml"
    worse.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace"))
    assert "stop_grace" in says(*check, str(worse))
