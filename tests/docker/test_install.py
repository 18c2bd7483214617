"""docker/Dockerfile's own lines, run in an empty environment, give a Permafrost that works."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.docker import dockerfile
from tests.docker.empty_environments import ROOT, Image

TARGET, OTHER = ("cpu", "cuda") if torch.version.cuda is None else ("cuda", "cpu")
"""The image of the torch that this machine gets, and the one of another torch."""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Emptied afterwards: pytest keeps folders of its last runs, and this one holds gigabytes. Nobody waits
    for it, as a disk that discards what is freed takes minutes for 70,000 files."""
    yield tmp_path
    subprocess.run(["sh", "-c", 'rm -rf "$0" &', str(tmp_path)], check=True, start_new_session=True)


@pytest.mark.timeout(1200)
@pytest.mark.deep
@pytest.mark.install
def test_install_and_entry_lines_work_in_an_empty_environment(folder: Path) -> None:
    image = Image(folder, TARGET)

    # What it runs when nothing is said, as its entry point does.
    entry = dockerfile.last(TARGET, "ENTRYPOINT")
    shown = image.run(*entry, *dockerfile.last(TARGET, "CMD"))
    assert shown.returncode == 0, shown.stderr
    assert "Usage: permafrost" in shown.stdout
    for command in (["prefect", "--version"], ["dask", "--version"]):
        assert image.run(*entry, *command).returncode == 0

    # It is ours that runs, installed, and it computes.
    where = image.run("python", "-c", "import permafrost; print(permafrost.__file__)").stdout
    assert str(image.root) in where
    # Below /tmp and /data of the image, which lie in a folder of the test's.
    texts = image.root / "tmp" / "texts.txt"
    texts.write_text("Snow melts.\nIce, too.\n")
    words = (
        "embed",
        "/tmp/texts.txt",
        "--backbone",
        "minilm",
        "--method",
        "mean",
        "-o",
        "/data/o.parquet",
    )
    made = image.run(*entry, "permafrost", *words)
    assert made.returncode == 0, made.stderr
    assert (image.root / "data" / "o.parquet").exists()
    assert (image.root / "data" / "home" / "features").is_dir()

    # The list of what is inside names everything with its pinned version.
    bill = json.loads((image.root / "usr/share/permafrost/sbom.cdx.json").read_text())
    listed = {c["name"].lower(): c["version"] for c in bill["components"]}
    lines = (ROOT / "constraints.txt").read_text().lower().splitlines()
    pinned = dict(line.split("==") for line in lines if "==" in line and not line.startswith("#"))
    assert {"permafrost", "torch", "prefect", "distributed", "asyncpg"} <= set(listed)
    assert "cyclonedx-bom" not in listed
    assert "pytest" not in listed
    for name, version in listed.items():
        if name in pinned:
            assert version.partition("+")[0] == pinned[name]
    unpinned = set(listed) - set(pinned)
    assert {name for name in unpinned if not name.startswith(("nvidia", "triton", "cuda"))} == {
        "permafrost",
        "pip",
    }

    # The other image refuses this torch.
    (_, check), *_ = dockerfile.stages()[OTHER].instructions
    refused = image.run("sh", "-c", check)
    assert refused.returncode == 1
    assert "TORCH_INDEX_URL" in refused.stderr
