"""The tiny models of the extraction's tests."""

from tests.stages.extraction.conftest import model_folder, pair, tiny_files

__all__ = ["model_folder", "pair", "tiny_files"]
