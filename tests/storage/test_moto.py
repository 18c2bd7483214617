"""The contract of homes on another implementation of S3 than ours: moto's, as a server on loopback."""

import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest
from obstore.store import from_url

from permafrost.storage import replica
from permafrost.storage.progress import SilentProgress
from permafrost.storage.replica import attach, detach
from tests.storage.home_contract import HomeContract, Place

pytest.importorskip("moto", reason="only the extra 'deep' has moto")


class MotoBucket(Place):
    def __init__(self, tmp_path: Path) -> None:
        self._tmp_path, self._objects = tmp_path, from_url("s3://bucket/lab")

    def seen_from(self, machine: str) -> Path:
        return attach("s3://bucket/lab", self._tmp_path / machine, SilentProgress())

    def read(self, key: str) -> bytes:
        return bytes(obstore.get(self._objects, key).bytes())

    def write(self, key: str, content: bytes) -> None:
        obstore.put(self._objects, key, content)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log(self, type: str, message: str, *args: object) -> None:
            """Stay quiet."""

    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, request_handler=Quiet)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.deep
class TestMoto(HomeContract):
    @pytest.fixture
    def place(  # type: ignore[override]
        self, endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Iterator[Place]:
        environment = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        reset = urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")
        urllib.request.urlopen(reset).close()
        urllib.request.urlopen(urllib.request.Request(f"{endpoint}/bucket", method="PUT")).close()
        yield MotoBucket(tmp_path)
        for folder in list(replica._replicas):
            detach(folder)
