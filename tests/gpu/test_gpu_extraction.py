"""Extraction on a GPU: the CPU's store, resume after a kill, too little memory, two at once."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from permafrost.stages.extraction import computing
from permafrost.stages.extraction.backbone import BackboneConfig, BackboneFiles
from permafrost.stages.extraction.capture import parse_capture
from permafrost.stages.extraction.extract import ExtractReport, extract
from permafrost.stages.extraction.forward import forward
from permafrost.stages.extraction.target import ExtractConfig, ExtractRuntime, resolve_target
from permafrost.storage.features.layout import Axes
from permafrost.storage.features.store import FeatureStore
from permafrost.storage.features.verification import verify
from permafrost.storage.keys import text_digest
from permafrost.storage.progress import SilentProgress
from permafrost.storage.readers import read_rows
from tests.gpu.devices import checked_device
from tests.stages.extraction.tiny_models import WORDS

DEVICE = checked_device()
CAPTURE = "hidden=all,values=all,attention_rows=all,hidden=2@mean"
AXES = Axes(segment_tokens=2048, segment_texts=128)
ONE_SEGMENT = Axes(segment_tokens=1 << 17, segment_texts=4096)
"""A batch never goes beyond a segment, so a large batch needs a large one."""
FLOAT16_NOISE = 2e-3
"""Rounding to float16 (2**-11, relative) on activations of order 1, and float32 summed in other orders."""


def texts(n: int, seed: int = 0) -> list[str]:
    """Different texts of 4 to 40 words."""
    rng = np.random.default_rng(seed)
    return [f"{' '.join(rng.choice(WORDS, rng.integers(4, 40)))} {i}" for i in range(n)]


def run(
    files: BackboneFiles,
    home: Path,
    corpus: list[str],
    device: str,
    batch_tokens: int = 1024,
    axes: Axes = AXES,
) -> ExtractReport:
    """One extraction of everything."""
    config = {
        "backbone": BackboneConfig(source=str(files.folder), max_length=60),
        "capture": parse_capture(CAPTURE),
    }
    target = resolve_target(ExtractConfig.model_validate(config))
    digests = [text_digest(t) for t in corpus]
    runtime = ExtractRuntime(device=device, batch_tokens=batch_tokens, buffer_bytes=1 << 30)
    return extract(target, home, corpus, digests, runtime, SilentProgress(), axes=axes)


def stores_agree(one: FeatureStore, other: FeatureStore) -> int:
    """Every committed row of both; returns the rows compared."""
    assert one.segments() == other.segments()
    compared = 0
    for number in one.segments():
        assert one.committed(number) == other.committed(number)
        for array in one.committed(number):
            n = one.segment(number).n_tokens
            n = one.segment(number).table.num_rows if array.startswith("pooled") else n
            mine, theirs = (read_rows(s, number, array, 0, n) for s in (one, other))
            np.testing.assert_allclose(
                mine.astype(np.float32),
                theirs.astype(np.float32),
                rtol=FLOAT16_NOISE,
                atol=FLOAT16_NOISE,
                err_msg=array,
            )
            compared += n
    return compared


@pytest.mark.parametrize("family", ["bert", "llama", "gpt2"])
def test_a_store_holds_the_rows_of_the_cpu(
    tiny_files: Callable[[str], BackboneFiles], family: str, tmp_path: Path
) -> None:
    corpus = texts(150)
    found = {
        d: run(tiny_files(family), tmp_path / d.replace(":", ""), corpus, d)
        for d in (DEVICE, "cpu")
    }
    assert stores_agree(found[DEVICE].store, found["cpu"].store) > 10_000


def _extract_in_child(files: BackboneFiles, home: Path, n: int, device: str) -> None:
    run(files, home, texts(n), device)


def test_a_killed_extraction_goes_on_where_it_was(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path
) -> None:
    files, n = tiny_files("bert"), 2000
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=_extract_in_child, args=(files, tmp_path / "home", n, DEVICE))
    child.start()
    deadline = time.monotonic() + 120
    while child.is_alive() and time.monotonic() < deadline:
        if len(list((tmp_path / "home").rglob("receipts/*/attention_rows*"))) > 3:
            break
        time.sleep(0.005)
    assert child.pid is not None
    if child.is_alive():
        os.kill(child.pid, signal.SIGKILL)
    child.join()
    report = run(files, tmp_path / "home", texts(n), DEVICE)
    whole = run(files, tmp_path / "whole", texts(n), DEVICE)
    assert whole.n_tokens > 0
    assert child.exitcode == 0 or report.n_tokens < whole.n_tokens
    assert not verify(report.store, SilentProgress())
    assert stores_agree(report.store, whole.store) > 10_000


# On a CPU in its place there is no limit to meet; test_splitting.py of the extraction has a fake one.
@pytest.mark.skipif(not DEVICE.startswith("cuda"), reason="only a GPU has a limit to set")
def test_too_little_memory_splits_the_batch_and_the_run_goes_on(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0

    def counted(*arguments: object) -> object:
        nonlocal failures
        try:
            return forward(*arguments)  # pyright: ignore[reportArgumentType] # passed on as they came
        except torch.OutOfMemoryError:
            failures += 1
            raise

    index = torch.device(DEVICE).index or 0

    def reserved(name: str, batch_tokens: int) -> tuple[ExtractReport, int]:
        """An extraction in batches of one size, and the most memory that it took."""
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(index)
        report = run(tiny_files("bert"), tmp_path / name, corpus, DEVICE, batch_tokens, ONE_SEGMENT)
        return report, torch.cuda.max_memory_reserved(index)

    corpus = texts(3000)
    # Twice: the first one also makes what the libraries keep.
    reserved("first", 1024)
    whole, least = reserved("whole", 1024)
    _, most = reserved("large", 1 << 20)
    assert most - least > 32 << 20, "the large batch needs no more, so no limit lies in between"
    monkeypatch.setattr(computing, "forward", counted)
    total = torch.cuda.get_device_properties(index).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((least + (most - least) // 3) / total, index)
    try:
        small, _ = reserved("small", 1 << 20)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, index)
    assert failures > 0, "the limit was never met, so nothing was shown"
    assert small.split_from is not None
    assert stores_agree(small.store, whole.store) > 10_000


def test_two_extractions_share_a_device(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path
) -> None:
    corpus = texts(300)
    families = ("bert", "llama")
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(run, tiny_files(f), tmp_path / f, corpus, DEVICE) for f in families]
        together = [future.result() for future in futures]
    for family, report in zip(families, together, strict=True):
        alone = run(tiny_files(family), tmp_path / f"{family} alone", corpus, DEVICE)
        assert stores_agree(report.store, alone.store) > 10_000
