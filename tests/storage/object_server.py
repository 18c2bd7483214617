"""A small object store on loopback that speaks as much of S3's protocol as homes need.

Conditional PUTs (If-None-Match, If-Match), ranged and conditional GETs, paged listings, uploads in
parts, deletes; and faults on request.
"""

import hashlib
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

PAGE = 50
"""Keys per page of a listing: small, so that paging is exercised."""


Fault = Literal["500", "503", "stalled", "torn", "request torn", "answer lost", "twice"]
"""A status; no answer for STALL_S; half of the answer, then the connection is closed; half of the request has
come when it is closed, and nothing is carried out; it is carried out and the connection closed without an
answer; or it comes twice, and the second answer is given."""
STALL_S = 3.0


@dataclass
class ObjectServer:
    """State of the server, shared with the test."""

    endpoint: str = ""
    objects: dict[str, bytes] = field(default_factory=dict[str, bytes])
    times: dict[str, float] = field(default_factory=dict[str, float])
    uploads: dict[str, dict[int, bytes]] = field(default_factory=dict[str, dict[int, bytes]])
    requests: Counter[str] = field(default_factory=Counter[str])
    """By method, plus `PUT <key>` and `GET <key>`."""
    sent: Counter[str] = field(default_factory=Counter[str])
    """Bytes of content that were sent, by key."""
    ahead_s: float = 0.0
    """By which its clock is ahead of this machine's."""
    log: list[str] = field(default_factory=list[str])
    """Keys in the order in which their objects appeared or went."""
    refuse: Callable[[str, str], bool] = lambda method, key: False
    """Answers 503 where it says so."""
    fault: Callable[[str, str], Fault | None] = lambda method, key: None
    """What goes wrong with a request."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to find it."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def store(self, key: str, content: bytes) -> str:
        """Put an object; returns its entity tag."""
        self.objects[key], self.times[key] = content, time.time() + self.ahead_s
        self.log.append(f"PUT {key}")
        return tag_of(content)


@lru_cache(maxsize=1024)
def tag_of(content: bytes) -> str:
    """Entity tag."""
    return f'"{hashlib.md5(content).hexdigest()}"'


@contextmanager
def object_server() -> Generator[ObjectServer]:
    """Serve buckets under 127.0.0.1 inside the block."""
    state = ObjectServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(state))
    server.daemon_threads = True
    state.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _handler(state: ObjectServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # Or an answer's body waits until the client has acknowledged its head, 40 ms each.
        disable_nagle_algorithm = True
        _fault: Fault | None = None
        _is_silent = False

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet."""

        def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
            if self._is_silent:
                return
            if self._fault == "answer lost":
                self.close_connection = True
                return
            self.send_response(code)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            with suppress(ConnectionError):
                self.end_headers()
            if self._fault == "torn":
                body = body[: len(body) // 2]
                self.close_connection = True
            if self.command != "HEAD":
                with suppress(ConnectionError):  # a client that has stopped waiting
                    self.wfile.write(body)

        def _error(self, code: int, name: str) -> None:
            self._answer(
                code, f"<Error><Code>{name}</Code><Message>{name}</Message></Error>".encode()
            )

        def _parse(self) -> tuple[str, dict[str, str], bytes]:
            url = urlsplit(self.path)
            n_bytes = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(n_bytes)
            if len(body) < n_bytes:
                raise ConnectionError("the client has gone in the middle of a request")
            query = {k: v[0] for k, v in parse_qs(url.query, keep_blank_values=True).items()}
            return unquote(url.path).lstrip("/"), query, body

        def _handle(self) -> None:
            key, query, body = self._parse()
            self._fault = state.fault(self.command, key)
            if self._fault == "stalled":
                time.sleep(STALL_S)
            if self._fault == "request torn":
                self.close_connection = True
                return
            if self._fault == "twice":
                self._is_silent = True
                self._carry_out(key, query, body)
                self._is_silent = False
            self._carry_out(key, query, body)

        def _carry_out(self, key: str, query: dict[str, str], body: bytes) -> None:
            with state.lock:
                state.requests[self.command] += 1
                state.requests[f"{self.command} {key}"] += 1
                if self._fault == "500":
                    self._error(500, "InternalError")
                elif self._fault == "503" or state.refuse(self.command, key):
                    self._error(503, "ServiceUnavailable")
                elif self.command == "GET" and "list-type" in query:
                    self._list(key.rstrip("/"), query)
                elif self.command in ("GET", "HEAD"):
                    self._get(key)
                elif self.command == "PUT":
                    self._put(key, query, body)
                elif self.command == "POST":
                    self._post(key, query, body)
                else:
                    self._error(501, "NotImplemented")

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle

        def _get(self, key: str) -> None:
            if key not in state.objects:
                self._error(404, "NoSuchKey")
                return
            content = state.objects[key]
            if self.headers.get("If-Match") not in (None, tag_of(content)):
                self._error(412, "PreconditionFailed")
                return
            headers = {
                "ETag": tag_of(content),
                "Last_Modified": formatdate(state.times[key], usegmt=True),
            }
            asked = self.headers.get("Range")
            if not asked and self.command == "GET":
                state.sent[key] += len(content)
            if asked:
                low, high = asked.removeprefix("bytes=").split("-")
                first = int(low) if low else len(content) - int(high)
                part = content[first : int(high) + 1 if low and high else None]
                state.sent[key] += len(part)
                headers["Content_Range"] = f"bytes {first}-{first + len(part) - 1}/{len(content)}"
                self._answer(206, part, **headers)
            else:
                self._answer(200, content, **headers)

        def _put(self, key: str, query: dict[str, str], body: bytes) -> None:
            if "uploadId" in query:
                state.uploads[query["uploadId"]][int(query["partNumber"])] = body
                self._answer(200, ETag=tag_of(body))
                return
            present = state.objects.get(key)
            must_be = self.headers.get("If-Match")
            taken = self.headers.get("If-None-Match") == "*" and present is not None
            if taken or (must_be is not None and must_be != tag_of(present or b"")):
                self._error(412, "PreconditionFailed")
            else:
                self._answer(200, ETag=state.store(key, body))

        def _post(self, key: str, query: dict[str, str], body: bytes) -> None:
            if "uploads" in query:
                upload = uuid.uuid4().hex
                state.uploads[upload] = {}
                self._answer(
                    200,
                    f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                    f"</InitiateMultipartUploadResult>".encode(),
                )
            elif "uploadId" in query:
                parts = state.uploads.pop(query["uploadId"])
                tag = state.store(key, b"".join(parts[n] for n in sorted(parts)))
                self._answer(
                    200,
                    f"<CompleteMultipartUploadResult><ETag>{escape(tag)}</ETag>"
                    f"</CompleteMultipartUploadResult>".encode(),
                )
            elif "delete" in query:
                keys = [unescape(k) for k in re.findall(r"<Key>(.*?)</Key>", body.decode())]
                for name in keys:
                    if state.objects.pop(f"{key.rstrip('/')}/{name}", None) is not None:
                        state.log.append(f"DELETE {key.rstrip('/')}/{name}")
                done = "".join(f"<Deleted><Key>{escape(k)}</Key></Deleted>" for k in keys)
                self._answer(200, f"<DeleteResult>{done}</DeleteResult>".encode())
            else:
                self._error(501, "NotImplemented")

        def _list(self, bucket: str, query: dict[str, str]) -> None:
            start = f"{bucket}/{query.get('prefix', '')}"
            keys = sorted(k for k in state.objects if k.startswith(start))
            below = dict[str, None]()
            if query.get("delimiter") == "/":
                deeper = [k for k in keys if "/" in k[len(start) :]]
                below = {start + k[len(start) :].split("/")[0] + "/": None for k in deeper}
                keys = [k for k in keys if k not in deeper]
            after = query.get("continuation-token")
            keys = [k for k in keys if after is None or k > after]
            page = keys[:PAGE]
            more = len(keys) > len(page)
            rows = "".join(
                f"<Contents><Key>{escape(k.removeprefix(bucket + '/'))}</Key>"
                f"<LastModified>{_iso(state.times[k])}</LastModified>"
                f"<ETag>{escape(tag_of(state.objects[k]))}</ETag>"
                f"<Size>{len(state.objects[k])}</Size></Contents>"
                for k in page
            )
            folders = "".join(
                f"<CommonPrefixes><Prefix>{escape(p.removeprefix(bucket + '/'))}</Prefix></CommonPrefixes>"
                for p in below
            )
            token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more else ""
            self._answer(
                200,
                f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>"
                f"<KeyCount>{len(page)}</KeyCount>{token}{rows}{folders}</ListBucketResult>".encode(),
            )

    return Handler


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))
