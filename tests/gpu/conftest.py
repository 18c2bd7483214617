from tests.flows.conftest import made_once, prefect_server
from tests.stages.extraction.conftest import model_folder, tiny_files

__all__ = ["made_once", "model_folder", "prefect_server", "tiny_files"]
