"""Wrong input that once had no end, or a traceback: exit code 2, one short message, nothing written."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from permafrost.flows import cli
from permafrost.flows.experiment_files.experiment_file import load_experiment
from permafrost.stages.corpus.texts import read_texts
from permafrost.stages.heads import MeanHead
from permafrost.storage.errors import InputError
from tests.flows.conftest import tiny_experiment
from tests.stages.encoder.fitted_homes import home_with_features

FILES = Path(__file__).parents[1] / "bad_input"
LONG = "a" * 20_000
Refused = Callable[[Sequence[str]], str]


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Refused:
    """Runs a command line that has to be refused, in a folder of its own; returns what it said."""
    monkeypatch.setattr("permafrost.flows.quiet.EMBEDDED_DEFAULTS", {})
    monkeypatch.delenv("PERMAFROST_HOME", raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)

    def run(arguments: Sequence[str]) -> str:
        monkeypatch.setattr("sys.argv", ["permafrost", *arguments])
        before = sorted(folder.rglob("*"))
        with pytest.raises(SystemExit) as caught:
            cli.main()
        said = capsys.readouterr()
        assert caught.value.code == 2, said
        assert "Traceback" not in said.err
        assert len(said.err) < 2_500
        assert "a" * 101 not in said.err
        assert "\x1b]" not in said.err
        assert said.out == ""
        assert sorted(folder.rglob("*")) == before
        return said.err

    return run


@pytest.fixture
def experiment(tmp_path: Path, tiny_bert: Path) -> Path:
    """A right experiment."""
    path = tmp_path / "right.yaml"
    path.write_text(yaml.safe_dump(tiny_experiment(tiny_bert)))
    return path


@pytest.mark.parametrize("path", sorted(FILES.glob("*.yaml")), ids=lambda p: p.stem)
def test_experiment_files(path: Path, refused: Refused) -> None:
    assert path.name in refused(["run", str(path)])


@pytest.mark.parametrize("path", sorted(FILES.glob("*.jsonl")), ids=lambda p: p.stem)
def test_files_of_texts(path: Path, refused: Refused, tiny_bert: Path) -> None:
    flags = ["--backbone", str(tiny_bert), "--capture", "hidden=1"]
    assert path.name in refused(["extract", str(path), *flags])


GENERATED = {
    "nested": '{"text": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "long integer": '{"text": "a", "n": ' + "9" * 5_000 + "}",
    "many columns": "{" + ", ".join(f'"c{i}": 1' for i in range(5_000)) + "}",
    "long column": '{"' + LONG + '": 1}',
}


@pytest.mark.parametrize("name", GENERATED)
def test_texts_too_large_for_a_corpus(
    name: str, refused: Refused, tmp_path: Path, tiny_bert: Path
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(GENERATED[name] + "\n")
    refused(["extract", str(path), "--backbone", str(tiny_bert), "--capture", "hidden=1"])


VALUES = [
    "seeds=[-1]",
    "seeds=[1:30]",
    "seeds=[" + "9" * 5_000 + "]",
    "tasks.ratio 0.2.n_test=1e30",
    "tasks.ratio 0.2.n_test=" + "9" * 18,
    "tasks.ratio 0.2.seed=-1",
    "methods.GLOT.head.hidden=1e12",
    "methods.GLOT.optim.batch_size=" + "9" * 15,
    "methods.mean.layer=hidden/" + "9" * 5_000,
    "methods.mean.layer=hidden/١",
    "capture=hidden=١@tokens",
    f"capture={LONG}",
    f"name={LONG}",
    f"tasks.{LONG}={{kind: dilution, ratio: 0.5}}",
    'tasks={"a\\0b": {kind: dilution, ratio: 0.5}}',
    f"metrics={{{LONG}: accuracy}}",
    f"backbone.source={LONG}",
    f"backbone.source=/{LONG}/{LONG}",
    'backbone.source="a\\0b"',
    "backbone.source=/dev/null/x",
    "backbone.source=~nobody-of-this-name/x",
    "backbone.max_length=1e30",
    "store_dtype=''",
    "runtime.workers=-1",
    "runtime.workers=" + "9" * 15,
    "a" * 200 + "=1",
    ".".join("a" * 1_000) + "=1",
    "x=" + "[" * 10_000,
    "x=&a [*a]",
    "tasks.f={kind: files, files: {train: /dev/null/x.csv}, task: {kind: classification}}",
    'tasks.f={kind: files, files: {train: "a\\0.csv"}, task: {kind: classification}}',
    f"tasks.f={{kind: files, files: {{train: {LONG}.csv}}, task: {{kind: classification}}}}",
    f"tasks.f={{kind: hub, path: {LONG}, splits: {{train: x}}, task: {{kind: classification}}}}",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda v: v[:40].encode("unicode_escape").decode())
def test_values_of_an_experiment(value: str, refused: Refused, experiment: Path) -> None:
    refused(["run", str(experiment), "--set", value])


@pytest.mark.parametrize(
    "home",
    [LONG, "x/" * 3_000, "", "/dev/null/home", "/dev/null", "a\0b", "file/home"],
    ids=["name", "path", "empty", "below a device", "a device", "NUL", "below a file"],
)
def test_homes(home: str, refused: Refused, experiment: Path) -> None:
    Path("file").write_text("")
    refused(["run", str(experiment), "--home", home])
    refused(["ls", "--home", home])


def test_a_home_that_takes_no_files(refused: Refused, experiment: Path, tiny_bert: Path) -> None:
    Path("t.txt").write_text("snow melts\n")
    backbone = ["--backbone", str(tiny_bert), "--home", "/proc/home"]
    for command in (
        ["run", str(experiment), "--home", "/proc/home"],
        ["extract", "t.txt", "--capture", "hidden=1", *backbone],
        ["embed", "t.txt", "--method", "mean", "-o", "x.parquet", *backbone],
    ):
        said = refused(command)
        assert "the home cannot be written to '/proc/home': /proc may not be written to" in said
        assert said.count("\n") == 1


@pytest.mark.parametrize(
    "output",
    ["/dev/full", ".", "/proc/x.parquet", "/proc/x/y.parquet", "file/x.parquet", LONG, "b" * 250],
    ids=["device", "folder", "proc", "below proc", "below a file", "long", "no room for a draft"],
)
def test_outputs(output: str, refused: Refused, tiny_bert: Path) -> None:
    Path("file").write_text("")
    Path("t.txt").write_text("snow melts\n")
    refused(["embed", "t.txt", "--backbone", str(tiny_bert), "-o", output])


FLAGS = [
    ["--dtype", ""],
    ["--store-dtype", ""],
    ["--dtype", LONG],
    ["--capture", "hidden=١@tokens"],
    ["--capture", "hidden=" + "9" * 5_000],
    ["--capture", LONG],
    ["--recipe", LONG],
    ["--recipe", "meta_eol[" + "9" * 5_000 + "]"],
    ["--recipe", "htp:size=" + "9" * 5_000],
    ["--max-length", LONG],
    ["--max-length", "9" * 30],
    ["--batch-tokens", "9" * 14],
    ["--device", LONG],
    ["--codec", LONG],
    ["--too-long", LONG],
    ["--revision", LONG, "--backbone", "../" + LONG],
    ["--" + LONG, "1"],
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: " ".join(f)[:40].encode("unicode_escape"))
def test_flags(flags: list[str], refused: Refused, tiny_bert: Path) -> None:
    Path("t.txt").write_text("snow melts\n")
    refused(["extract", "t.txt", "--backbone", str(tiny_bert), "--capture", "hidden=1", *flags])


@pytest.mark.parametrize("command", ["show", "why", "verify", "repair", "statistics"])
def test_an_empty_id_names_nothing(
    refused: Refused, tiny_bert: Path, tmp_path: Path, command: str
) -> None:
    home = home_with_features(tmp_path / "home", tiny_bert, "hidden=2@tokens")
    home.head(MeanHead(), "hidden/2")
    assert "the ID is empty" in refused([command, "", "--home", str(home.path)])


@pytest.mark.parametrize(
    "texts",
    ["hf:../x", "hf:../x:train", "hf:../../x/y:train", f"hf:{LONG}:train", LONG, "a\0b.txt", "::"],
)
def test_names_of_texts(texts: str, refused: Refused, tiny_bert: Path) -> None:
    refused(["extract", texts, "--backbone", str(tiny_bert), "--capture", "hidden=1"])


def test_a_pipe_is_no_file(refused: Refused, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    assert "not a regular file" in refused(["run", str(tmp_path / "pipe.yaml")])


_SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["no", "1:30", "hidden/99999999999", "\0", "[", "${HOME}", "../x", LONG]),
)
_VALUES = st.recursive(
    _SCALARS,
    lambda v: st.lists(v, max_size=2) | st.dictionaries(st.text(max_size=4), v, max_size=2),
)


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    if not isinstance(value, dict):
        return [at]
    return [at, *(p for k, v in value.items() for p in _paths(v, (*at, k)))][bool(not at) :]


@given(data=st.data())
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_an_experiment_with_another_value_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = tiny_experiment(Path("tiny"))
    path = data.draw(st.sampled_from(_paths(content)))
    at: Any = content
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = data.draw(_VALUES)
    file = tmp_path_factory.mktemp("fuzz") / "x.yaml"
    file.write_text(yaml.safe_dump(content, allow_unicode=True), errors="surrogatepass")
    said = ""
    try:
        load_experiment(file)
    except InputError as error:
        said = str(error)
    # Any other exception is a traceback for the user, and fails here.
    assert len(said) < 5_000


@given(st.binary(max_size=60), st.integers(0, 60))
@settings(max_examples=25, suppress_health_check=list(HealthCheck))
def test_jsonl_with_other_bytes_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, new: bytes, at: int
) -> None:
    content = b'{"text": "snow melts", "label": 1}\n{"text": "ice", "label": 0}\n'
    file = tmp_path_factory.mktemp("fuzz") / "x.jsonl"
    file.write_bytes(content[:at] + new + content[at + len(new) :])
    found: list[str] = []
    try:
        found = read_texts(str(file))
    except InputError as error:
        assert str(error)  # noqa: PT017  # either is right, anything else fails
    assert all(isinstance(text, str) and text.strip() for text in found)
