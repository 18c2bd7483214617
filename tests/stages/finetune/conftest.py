"""Tiny models of every family."""

from tests.stages.extraction.conftest import model_folder, pair, tiny_files

__all__ = ["model_folder", "pair", "tiny_files"]
