"""A real PostgreSQL from the machine's own packages, in a folder of its own."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

ALIEN = "nobody"
"""Who runs it where we are root: it refuses to run as root."""


def programs() -> Path | None:
    """Where its programs are; None where it is not installed."""
    debian = Path("/usr/lib/postgresql").glob("*/bin/initdb")  # its programs are on nobody's PATH
    if folders := sorted((p.parent for p in debian), key=lambda p: int(p.parent.name)):
        return folders[-1]
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


class PostgreSQL:
    """A server with one database, which wants a password.

    Args:
        folder: empty; its data.
        environment: POSTGRES_USER, POSTGRES_DB and POSTGRES_PASSWORD_FILE, as the official image takes them.
    """

    def __init__(self, folder: Path, environment: dict[str, str], port: int) -> None:
        bin_folder = programs()
        assert bin_folder is not None
        self._bin, self._folder, self._port = bin_folder, folder, port
        self._user = environment["POSTGRES_USER"]
        self._as = {"user": ALIEN} if os.geteuid() == 0 else {}
        if self._as:
            shutil.chown(folder, ALIEN)
        self._run(
            "initdb",
            *("--pgdata", str(folder / "data"), "--username", self._user),
            *("--auth", "scram-sha-256", "--encoding", "UTF8", "--no-sync"),
            *("--pwfile", environment["POSTGRES_PASSWORD_FILE"]),
        )
        self.start()
        try:
            self._run(
                "createdb",
                *("--host", "127.0.0.1", "--port", str(port), "--username", self._user),
                environment["POSTGRES_DB"],
                PGPASSWORD=Path(environment["POSTGRES_PASSWORD_FILE"]).read_text(),
            )
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        """Start it and wait until it answers."""
        log = (self._folder.parent / "postgresql.log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [
                    str(self._bin / "postgres"),
                    *("-D", str(self._folder / "data"), "-p", str(self._port), "-F"),
                    *("-k", str(self._folder), "-c", "listen_addresses=127.0.0.1"),
                ],
                cwd=self._folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                **self._as,
            )
        ready = [str(self._bin / "pg_isready"), "--host", "127.0.0.1", "--port", str(self._port)]
        deadline = time.monotonic() + 200
        while subprocess.run(ready, check=False, capture_output=True).returncode != 0:
            assert self._process.poll() is None, log.name
            assert time.monotonic() < deadline, log.name
            time.sleep(0.1)

    def _run(self, program: str, *arguments: str, **environment: str) -> None:
        done = subprocess.run(
            [str(self._bin / program), *arguments],
            cwd=self._folder,
            env={**os.environ, **environment},
            check=False,
            capture_output=True,
            text=True,
            **self._as,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def stop(self) -> None:
        """End it, connections or not."""
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
