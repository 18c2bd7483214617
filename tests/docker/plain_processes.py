"""The services of docker/compose.yaml as plain processes: the same commands and environments, with folders in
place of volumes, free ports of the loopback interface in place of a network, and no container around them."""

import contextlib
import graphlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.docker import dockerfile
from tests.ports import free_port

ROOT = dockerfile.ROOT
COMPOSE = ROOT / "docker" / "compose.yaml"
ENTRY = ROOT / "docker" / "entry.sh"
HEALTHY_S = 240
"""How long a service may take to answer on a loaded machine."""
STOP_S = 2.0
"""How long a service may take to end; an engine kills it then."""
BUSY_S = 0.5
"""What starting, waking and counting processes may take of a busy machine."""


def compose(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The file as an engine reads it: variables put in, or their defaults."""

    def put_in(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put_in(item) for key, item in value.items()}
        if isinstance(value, list):
            return [put_in(item) for item in value]
        if isinstance(value, str):
            return re.sub(
                r"\$\{(\w+):-([^}]*)\}", lambda m: (variables or {}).get(m[1], m[2]), value
            )
        return value

    return put_in(yaml.safe_load(COMPOSE.read_text()))


def _another_user() -> list[str]:
    """What runs a command as a user without a name, who may write where everybody may; root only.

    It reads what root reads: the interpreter may lie in root's own folder.
    """
    read = "+dac_read_search"
    words = ["setpriv", "--reuid=54321", "--regid=54321", "--clear-groups", f"--inh-caps={read}"]
    words.append(f"--ambient-caps={read}")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        return []
    works = subprocess.run([*words, sys.executable, "-c", ""], check=False, capture_output=True)
    return words if works.returncode == 0 else []


class Service:
    """A service that runs."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self.log = name, process, log
        self.stopped = False

    def stop(self) -> float:
        """Ask it to end as an engine does, with SIGTERM; how long it took, s, its children included.

        An engine kills what is left of a container when its first process is gone; nothing must be left here.
        """
        everything = [psutil.Process(self.process.pid)]
        everything += everything[0].children(recursive=True)
        self.stopped = True
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        gone, left = psutil.wait_procs(everything, timeout=10 * STOP_S)
        took = time.monotonic() - started
        self.process.wait()
        assert not left, f"{self.name} left {left} running after {took:.1f} s; {self.said()}"
        assert gone
        return took

    def kill(self) -> None:
        """End it and its children, whatever state they are in."""
        with contextlib.suppress(psutil.NoSuchProcess):
            everything = [psutil.Process(self.process.pid)]
            everything += everything[0].children(recursive=True)
            for process in everything:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()

    def said(self) -> str:
        """The end of its log."""
        return f"--- {self.name}\n{self.log.read_text()[-4000:]}"


class Box:
    """A machine on which services are started and stopped.

    Args:
        folder: everything is in it; readable by everybody.
        variables: of the compose file.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.folder, self.variables = folder, variables
        self._document = compose(variables)
        self._user = _another_user()
        self.services: dict[str, Service] = {}
        self._ports: dict[str, int] = {}
        for name in ("data", "experiments", "logs"):
            (folder / name).mkdir(mode=0o755)
        (folder / "data").chmod(0o1777)
        self.secret = folder / "postgres_password"
        self.deployment = folder / "prefect.yaml"
        written = (ROOT / "docker" / self._document["configs"]["deployment"]["file"]).read_text()
        self.deployment.write_text(self._here(written, "deployment"))

    def port(self, name: str, service: str = "") -> int:
        """A free port in place of the one that the file names; the same for whoever asks again."""
        key = f"{name} {service}"
        if key not in self._ports:
            self._ports[key] = free_port()
        return self._ports[key]

    @property
    def api(self) -> str:
        """Prefect's."""
        return f"http://127.0.0.1:{self.port('4200')}/api"

    def _here(self, text: str, service: str) -> str:
        """Paths of containers as folders, names of services as this machine, ports as free ones."""
        scratch = self.folder / "scratch" / service
        places = {
            "/etc/permafrost/prefect.yaml": str(self.deployment),
            "permafrost-runner": str(ROOT / "docker" / "runner.sh"),
            "/run/secrets/postgres_password": str(self.secret),
            "/experiments": str(self.folder / "experiments"),
            "/data": str(self.folder / "data"),
            "/tmp": str(scratch),
            "//server:": "//127.0.0.1:",
            "//scheduler:": "//127.0.0.1:",
            "0.0.0.0": "127.0.0.1",
        }
        text = re.sub("|".join(map(re.escape, places)), lambda m: places[m[0]], text)
        for name in ("4200", "5432", "8786", "8787"):
            text = re.sub(rf"(?<!\d){name}(?!\d)", str(self.port(name)), text)
        for name in ("8080", "8790"):  # each container's own
            text = re.sub(rf"(?<!\d){name}(?!\d)", str(self.port(name, service)), text)
        return "127.0.0.1" if text == "database" else text

    def environment(self, service: str) -> dict[str, str]:
        """What the image and the file set, and nothing of ours but where programs and sources are."""
        found = self._document["services"][service]
        said = {k: str(v) for k, v in found["environment"].items() if v is not None}
        whole = {**dockerfile.environment(found["build"]["target"]), **said}
        return {
            **{name: self._here(value, service) for name, value in whole.items()},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": self._here("/tmp", service),  # a container has a /tmp of its own
            "OMP_NUM_THREADS": "1",
        }

    def order(self, *services: str) -> list[str]:
        """Each after those that it depends on."""
        needs = {s: self._document["services"][s].get("depends_on", {}) for s in services}
        sorter = graphlib.TopologicalSorter({s: set(needs[s]) & set(services) for s in services})
        return list(sorter.static_order())

    def start(self, service: str) -> Service:
        """Start a service in an empty scratch folder, as a new container has one."""
        scratch = self.folder / "scratch" / service
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        scratch.chmod(0o1777)
        words = [self._here(w, service) for w in self._document["services"][service]["command"]]
        log = self.folder / "logs" / f"{service}.log"
        with log.open("ab") as out:
            process = subprocess.Popen(
                [*self._user, str(ENTRY), *words],
                cwd=scratch,
                env=self.environment(service),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.services[service] = started = Service(service, process, log)
        return started

    def run(self, service: str) -> None:
        """Run a service to its end, which must be a good one."""
        started = self.start(service)
        assert started.process.wait(HEALTHY_S) == 0, started.said()

    def healthy(self, service: str) -> bool:
        """What the image's own check says of a service."""
        command = dockerfile.health_check(self._document["services"][service]["build"]["target"])
        asked = subprocess.run(
            command, env=self.environment(service), check=False, capture_output=True
        )
        return asked.returncode == 0

    def start_healthy(self, service: str) -> Service:
        """Start a service and wait until it is well."""
        started = self.start(service)
        deadline = time.monotonic() + HEALTHY_S
        while not self.healthy(service):
            assert started.process.poll() is None, f"{service} ended; {started.said()}"
            assert time.monotonic() < deadline, f"{service} is not well; {started.said()}"
            time.sleep(0.3)
        return started

    def check(self) -> None:
        """Fail if a service that should run has ended."""
        for service in self.services.values():
            assert service.stopped or service.process.poll() in (None, 0), service.said()

    def said(self) -> str:
        """The ends of all logs."""
        return "\n".join(service.said() for service in self.services.values())

    def end(self) -> None:
        """End whatever still runs."""
        for service in self.services.values():
            service.kill()
