"""What docker/ says, read; the parts that need no service."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docker import dockerfile
from tests.docker.plain_processes import ENTRY, ROOT, compose

OURS = ("permafrost:cpu", "permafrost:cuda")


def ours() -> dict[str, dict[str, Any]]:
    """The services that run our images."""
    found = compose()["services"]
    return {name: service for name, service in found.items() if service["image"] in OURS}


def test_ports_are_published_for_this_host_alone_unless_told_otherwise() -> None:
    def published(variables: dict[str, str]) -> list[str]:
        services = compose(variables)["services"].values()
        return [port for service in services for port in service.get("ports", [])]

    assert published({}) == ["127.0.0.1:4200:4200", "127.0.0.1:8787:8787"]
    told = published({"PERMAFROST_BIND": "10.0.0.1", "PREFECT_PORT": "80"})
    assert told == ["10.0.0.1:80:4200", "10.0.0.1:8787:8787"]


def test_no_secret_stands_in_the_file() -> None:
    document = compose()
    for name, service in document["services"].items():
        for variable, value in (service.get("environment") or {}).items():
            if re.search("PASSWORD|SECRET|TOKEN|KEY|AUTH", variable):
                said = value is not None and not variable.endswith("_FILE")
                assert not said, f"{name} says {variable}"
    for secret in document["secrets"].values():
        file = str(Path("docker") / secret["file"])
        ignored = subprocess.run(["git", "check-ignore", "-q", file], cwd=ROOT, check=False)
        assert ignored.returncode == 0, f"{file} could be committed"


def test_containers_run_without_privileges_and_keep_nothing() -> None:
    for name, service in ours().items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["user"] == "1000:0", name
        assert service["stop_grace_period"] == "2s", name
        # What is not read-only is a volume, or gone with the container.
        targets = {volume.split(":")[1] for volume in service["volumes"]}
        assert targets <= {"/data", "/experiments"}, name
        assert service["tmpfs"] == ["/tmp"], name
    set_to = dockerfile.environment("cpu")
    for variable in ("HOME", "PERMAFROST_HOME", "PERMAFROST_CACHE", "PREFECT_HOME", "HF_HOME"):
        assert set_to[variable].startswith(("/tmp", "/data")), variable
    assert not dockerfile.last("cpu", "USER").startswith(("0", "root"))


def test_services_that_keep_running_say_where_they_answer() -> None:
    for name, service in ours().items():
        once = service["restart"] == "on-failure"
        assert once != ("PERMAFROST_HEALTH" in service["environment"]), name


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_images_differ_in_torch_alone(target: str) -> None:
    assert [stage.name for stage in dockerfile.chain(target)] == ["installed", "runtime", target]
    assert dockerfile.last(target, "ENTRYPOINT") == ["permafrost-entry"]


def test_no_file_names_a_host() -> None:
    for path in (ROOT / "docker").iterdir():
        if path.is_file():
            hosts = set(re.findall(r"\w+://([\w.-]+)", path.read_text()))
            assert hosts <= {"127.0.0.1", "server", "scheduler"}, path


def test_versions_that_images_name_are_the_pinned_ones() -> None:
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    )
    named = re.findall(r"([\w-]+)==([\w.]+)", dockerfile.DOCKERFILE.read_text())
    assert named
    assert {name: pinned[name] for name, _ in named} == dict(named)
    deployment = yaml.safe_load((ROOT / "docker" / "prefect.yaml").read_text())
    assert deployment["prefect-version"] == pinned["prefect"]


def enter(*command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command as containers do."""
    return subprocess.run(
        [str(ENTRY), *command],
        env={"PATH": "/usr/bin:/bin", **environment},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_secret_comes_from_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("p@ss w/'\"$1\n")
    done = enter("env", PREFECT_SERVER_DATABASE_PASSWORD_FILE=str(secret))
    assert done.returncode == 0, done.stderr
    assert "PREFECT_SERVER_DATABASE_PASSWORD=p@ss w/'\"$1\n" in done.stdout
    assert str(secret) not in done.stdout


def test_a_secret_that_is_not_there_is_refused_and_named(tmp_path: Path) -> None:
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.touch()
    for path, what in ((missing, "cannot read"), (empty, "is empty")):
        done = enter("echo", "ran", HF_TOKEN_FILE=str(path))
        assert done.returncode == 2
        assert f"HF_TOKEN_FILE is '{path}'" in done.stderr
        assert what in done.stderr
        assert done.stdout == ""


def test_the_exit_code_is_the_command_s_own() -> None:
    assert enter("sh", "-c", "exit 3").returncode == 3
