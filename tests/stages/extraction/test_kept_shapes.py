"""The shapes of a backbone's tensors are found once for its files, as building a model takes seconds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from permafrost.stages.extraction import shape_check
from permafrost.stages.extraction.backbone import read_sizes
from permafrost.stages.extraction.files import BackboneFiles


def test_they_are_kept_by_the_digest_of_the_weights_and_the_version_of_transformers(
    tiny_files: Callable[[str], BackboneFiles], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERMAFROST_CACHE", str(tmp_path))
    built: list[str] = []
    build = shape_check._built

    def counted(config: Any, *others: Any) -> dict[str, list[int]]:
        built.append(config.model_type)
        return build(config, *others)

    monkeypatch.setattr(shape_check, "_built", counted)

    def sizes(model_type: str) -> object:
        """As in a new process."""
        monkeypatch.setattr(shape_check, "_SHAPES", {})
        return read_sizes(tiny_files(model_type))

    assert sizes("bert") == sizes("bert")
    assert built == ["bert"]
    sizes("gpt2")
    assert built == ["bert", "gpt2"]
    monkeypatch.setattr(shape_check.transformers, "__version__", "0")
    sizes("bert")
    assert built == ["bert", "gpt2", "bert"]
