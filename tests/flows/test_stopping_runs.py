"""Ctrl-C in a terminal, SIGTERM and SIGKILL: runs end in time, keep what they committed, leave no process."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml
from prefect.settings import get_current_settings

from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.flows.quiet import EMBEDDED_DEFAULTS
from permafrost.flows.records.history import histories
from permafrost.storage.artifacts import ArtifactStore
from permafrost.storage.features.store import all_stores
from tests.flows.conftest import tiny_experiment
from tests.flows.terminal_session import CTRL_C, TerminalSession, is_alive
from tests.ports import free_port

BOUND_S = 2.0
"""What people and schedulers are promised, from the signal to the end of the process."""
KEPT = "what was committed is kept, the same command goes on from there"
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"
NO_SERVER = {"PYTHONPATH": str(Path(__file__).parents[2])}


@pytest.fixture
def configured(prefect_server: None) -> dict[str, str]:
    """The environment of a program that talks to the tests' server."""
    settings = get_current_settings().to_environment_variables(exclude_unset=True)
    return {**EMBEDDED_DEFAULTS, **settings, **NO_SERVER}


@pytest.fixture
def alone(configured: dict[str, str]) -> dict[str, str]:
    """The environment of one that has to start a server; its database is there already."""
    return {k: v for k, v in configured.items() if k != "PREFECT_API_URL"}


def _check_terminal(session: TerminalSession, name: str) -> None:
    assert f"stopped by {name}: {KEPT}" in session.shown
    assert "Traceback" not in session.shown
    assert "error:" not in session.shown
    assert session.shown.rfind(SHOW_CURSOR) > session.shown.rfind(HIDE_CURSOR)


@pytest.mark.timeout(600)
@pytest.mark.deep
def test_ctrl_c_while_a_run_extracts(
    alone: dict[str, str], tiny_bert: Path, tmp_path: Path
) -> None:
    content = tiny_experiment(tiny_bert)
    content["tasks"] = {"long": {**content["tasks"]["ratio 0.2"], "n_train": 6_000}}
    content["report"] = {"title": "Long"}
    content["runtime"]["extract"]["batch_tokens"] = 32
    path = tmp_path / "long.yaml"
    path.write_text(yaml.safe_dump(content))
    home = tmp_path / "home"
    with TerminalSession("run", str(path), "--home", str(home), environment=alone) as session:
        session.wait_for("tokens/s")
        (server,) = session.children()
        assert os.getpgid(server) != os.getpgid(session.pid)
        session.press(CTRL_C)
        code, seconds = session.end()
    assert code == 130
    assert seconds < BOUND_S
    _check_terminal(session, "Ctrl-C")
    assert not is_alive(server)
    stages = {ref.stage for ref in ArtifactStore(home).refs()}
    assert "corpus" in stages, "what was published before is kept"
    assert stages <= {"corpus", "control"}, "what needs no features runs beside the extraction"


@pytest.mark.timeout(600)
@pytest.mark.deep
def test_sigterm_while_many_fits_run(
    configured: dict[str, str], finished_home: Path, tiny_bert: Path, tmp_path: Path
) -> None:
    content = tiny_experiment(tiny_bert)
    endless = {"lr": 0.001, "batch_size": 8, "max_epochs": 100_000, "patience": 100_000}
    content["methods"]["scorer"] = {**content["methods"]["shuffled"], "optim": endless}
    content["methods"]["scorer"]["labels"] = "true"
    content["runtime"]["workers"] = 4
    path = tmp_path / "endless.yaml"
    path.write_text(yaml.safe_dump(content))
    home = tmp_path / "home"
    shutil.copytree(finished_home, home)
    before = len(ArtifactStore(home).refs())
    with TerminalSession("run", str(path), "--home", str(home), environment=configured) as session:
        session.wait_for("loss")
        os.kill(session.pid, signal.SIGTERM)
        code, seconds = session.end()
    assert code == 143
    assert seconds < BOUND_S
    _check_terminal(session, "SIGTERM")
    assert len(ArtifactStore(home).refs()) >= before
    assert not list(home.glob("artifacts/*/*/.draft-*"))


@pytest.fixture(scope="module")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """`prefect server start` as a user has it; the environment of programs that talk to it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {
        **EMBEDDED_DEFAULTS,
        **NO_SERVER,
        "PREFECT_HOME": str(tmp_path_factory.mktemp("prefect")),
        "PREFECT_API_URL": url,
    }
    start = [sys.executable, "-m", "prefect", "server", "start"]
    with subprocess.Popen(
        [*start, "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as server:
        deadline = time.monotonic() + 120
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health"):
                break
            assert time.monotonic() < deadline, "Prefect's server did not start"
            time.sleep(0.2)
        yield environment
        os.killpg(server.pid, signal.SIGKILL)


@contextlib.contextmanager
def run_at_work(
    experiment: Path, arguments: Sequence[str], environment: Mapping[str, str], stage: str
) -> Generator["subprocess.Popen[str]"]:
    """`permafrost run`, with its first node in the middle of a stage that does this and nothing else."""
    program = (
        "import sys, time; import permafrost.flows.engine.engine as engine\n"
        "from permafrost.flows.stopping import STOP\n"
        "def work(dag, node, progress):\n"
        "    print('at work', flush=True)\n"
        f"    while True:\n        {stage}\n"
        "engine.make = work\n"
        "from permafrost.flows.cli import main; sys.argv[0] = 'permafrost'; main()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, "run", str(experiment), *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        assert run.stdout is not None
        assert any("at work" in line for line in run.stdout)
        yield run


@pytest.mark.deep
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("stage", "asked"),
    [
        pytest.param(
            "STOP.check(); time.sleep(0.01)",
            signal.SIGINT,
            marks=pytest.mark.night,
            id="Ctrl-C, which it looks for",
        ),
        pytest.param("time.sleep(60)", signal.SIGTERM, id="SIGTERM, which it does not"),
    ],
)
def test_a_lasting_server_knows_that_a_run_was_stopped(
    lasting_server: dict[str, str],
    experiment_file: Path,
    tmp_path: Path,
    asked: signal.Signals,
    stage: str,
) -> None:
    arguments = ("--home", str(tmp_path / "home"))
    with run_at_work(experiment_file, arguments, lasting_server, stage) as run:
        started = time.monotonic()
        run.send_signal(asked)
        assert run.wait() == 128 + asked
        assert time.monotonic() - started < BOUND_S
    request = urllib.request.Request(
        f"{lasting_server['PREFECT_API_URL']}/flow_runs/filter",
        json.dumps({"sort": "EXPECTED_START_TIME_DESC", "limit": 1}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        (found,) = json.load(answer)
    assert found["state"]["type"] == "CRASHED", found["state"]


@pytest.mark.deep
def test_the_end_of_a_run_that_does_not_look_is_recorded(
    experiment_file: Path, tmp_path: Path
) -> None:
    """As of a report in the middle of its tests: the process leaves by force, and the run is no killed
    one."""
    home = tmp_path / "home"
    arguments = ("--home", str(home), "--engine", "serial")
    with run_at_work(experiment_file, arguments, NO_SERVER, "time.sleep(60)") as run:
        run.send_signal(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGTERM
    (found,) = histories(home)[load_experiment(experiment_file).name].runs
    assert found.ended is not None
    assert (found.ended.outcome, found.ended.error, found.ended.computed) == ("stopped", None, {})


@pytest.mark.deep
def test_ctrl_c_while_texts_are_extracted(tiny_bert: Path, tmp_path: Path) -> None:
    texts, home = tmp_path / "texts.txt", tmp_path / "home"
    texts.write_text("".join(f"lake {i} freezes deep and slowly\n" for i in range(10_000)))
    arguments = ["extract", str(texts), "--backbone", str(tiny_bert), "--capture", "hidden=all"]
    arguments += ["--batch-tokens", "16", "--home", str(home)]
    with TerminalSession(*arguments, environment=NO_SERVER) as session:
        session.wait_for("tokens/s")
        session.press(CTRL_C)
        code, seconds = session.end()
    assert code == 130
    assert seconds < BOUND_S
    _check_terminal(session, "Ctrl-C")
    (store,) = all_stores(home)
    assert store.n_slots() > 0


def test_ctrl_c_while_modules_are_imported(tmp_path: Path) -> None:
    environment = {**NO_SERVER, "PYTHONVERBOSE": "1"}
    path = tmp_path / "none.yaml"
    with TerminalSession("plan", str(path), environment=environment) as session:
        session.wait_for("import 'typer'")
        session.press(CTRL_C)
        code, seconds = session.end()
    assert code == 130
    assert seconds < BOUND_S
    assert "Traceback" not in session.shown


@pytest.mark.deep
def test_a_killed_program_leaves_no_server(alone: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import os, time\n"
        "from permafrost.flows.server.api import prefect_api\n"
        "with prefect_api():\n"
        "    print(os.environ['PREFECT_API_URL'], flush=True)\n"
        "    time.sleep(3600)\n"
    )
    environment = {**os.environ, **alone}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        assert killed.stdout.readline().startswith("http://127.0.0.1:")
        found = Path(f"/proc/{killed.pid}/task").glob("*/children")
        (server,) = [int(pid) for path in found for pid in path.read_text().split()]
        assert is_alive(server)
        killed.kill()
    deadline = time.monotonic() + 200
    while is_alive(server):
        assert time.monotonic() < deadline, "the server outlived the program that started it"
        time.sleep(0.05)
