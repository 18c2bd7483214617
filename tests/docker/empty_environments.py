"""The instructions of docker/Dockerfile without an engine: an empty virtual environment stands for the base
image, a folder for the root of the file system."""

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docker import dockerfile

ROOT = dockerfile.ROOT
FOLDERS = ("build", "data", "tmp", "usr")
"""Those at the root that instructions name."""


def allowed(source: str) -> bool:
    """Whether the builder is sent this file or folder of the repository."""
    found = False
    for line in (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines():
        if line and not line.startswith("#") and fnmatch.fnmatch(source, line.removeprefix("!")):
            found = line.startswith("!")
    return found


class Image:
    """What a chain of stages has made so far.

    Args:
        folder: of all stages of a build.
        target: the stage to build; those that it copies from are built first.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self._folder, chain = folder, dockerfile.chain(target)
        self.root = folder / chain[0].name
        self._environment: dict[str, str] = {}
        self._place = "/"
        fresh = not self.root.exists()
        if fresh:
            for name in FOLDERS:
                (self.root / name).mkdir(parents=True)
            (self.root / "data").rmdir()  # an instruction makes it
            self._system("-m", "venv", str(self.root / "environment"))
        for stage in chain:
            done = self.root / f"{stage.name}.done"
            for instruction, argument in stage.instructions:
                self._do(instruction, argument, again=done.exists())
            done.touch()

    def here(self, text: str) -> str:
        """Paths of the image as they are on this machine."""
        return re.sub(rf"(?<![\w.])/(?=({'|'.join(FOLDERS)})\b)", f"{self.root}/", text)

    @property
    def environment(self) -> dict[str, str]:
        """Of a command: this machine's for pip, and what the file sets."""
        ours = ("PYTHONPATH", "VIRTUAL_ENV", "PERMAFROST_", "PREFECT_", "HF_")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
        folders = (self.root / "environment" / "bin", self.root / "usr" / "local" / "bin")
        said = {name: self.here(value) for name, value in self._environment.items()}
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        # Nothing is downloaded twice, and only what commands here import is compiled, once.
        saved = {"PIP_NO_CACHE_DIR": "0", "PIP_COMPILE": "0", "PYTHONDONTWRITEBYTECODE": ""}
        return {**inherited, **said, "PATH": path, **saved}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the image."""
        return subprocess.run(
            [self.here(word) for word in command],
            cwd=self.here(self._place),
            env=self.environment,
            check=False,
            capture_output=True,
            text=True,
        )

    def _system(self, *arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)

    def _do(self, instruction: str, argument: str, *, again: bool) -> None:
        match instruction:
            case "ENV":
                words = (word.split("=", 1) for word in shlex.split(argument))
                self._environment.update((name, value) for name, value in words)
            case "WORKDIR":
                self._place = argument
            case "COPY" if not again:
                self._copy(argument)
            case "RUN" if not again:
                done = self.run("sh", "-c", argument)
                assert done.returncode == 0, (
                    f"{argument}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                )
            case "COPY" | "RUN" | "ARG" | "USER" | "HEALTHCHECK" | "ENTRYPOINT" | "CMD":
                pass
            case _:
                raise AssertionError(f"no test follows {instruction}")

    def _copy(self, argument: str) -> None:
        words = argument.split()
        options = dict(w[2:].split("=") for w in words if w.startswith("--"))
        *sources, target = [w for w in words if not w.startswith("--")]
        place = Path(self.here(self._place), self.here(target))
        for source in sources:
            if "from" in options:
                path = Path(Image(self._folder, options["from"]).here(source))
            else:
                assert allowed(source), f"Dockerfile.dockerignore keeps {source} from the builder"
                path = ROOT / source
            if path.is_dir():
                unwanted = shutil.ignore_patterns("__pycache__")
                shutil.copytree(path, place, symlinks=True, ignore=unwanted, dirs_exist_ok=True)
                continue
            into = place / path.name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, into)
            if "chmod" in options:
                into.chmod(int(options["chmod"], 8))
