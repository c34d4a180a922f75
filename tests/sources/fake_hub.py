"""A hub on loopback: the routes that huggingface_hub uses, fed from directories, failing when asked to."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """A server of ``root/org/name/file``; ``fails`` maps a path's ending to a status, ``ranges`` can be off."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.fails, self.ranges = root, dict[str, int](), True
        self.asked, self.sent = Counter[str](), 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has read enough closes the connection."""


class Answer(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def _answer(self, body: bool) -> None:
        hub = self.server
        if self.path.startswith("/api/agent"):  # the library's own, once a day
            self._refuse(404, "")
            return
        hub.asked[f"{self.command} {self.path}"] += 1
        for ending, status in hub.fails.items():
            if self.path.endswith(ending):
                self._refuse(status, {401: "GatedRepo", 403: "GatedRepo", 404: "RepoNotFound"}.get(status, ""))
                return
        parts = self.path.strip("/").split("/")
        if len(parts) < 5 or parts[2] != "resolve":
            self._refuse(404, "RepoNotFound")
            return
        folder = hub.root / parts[0] / parts[1]
        if not folder.is_dir():
            self._refuse(404, "RepoNotFound")
            return
        if parts[3] not in ("main", COMMIT):
            self._refuse(404, "RevisionNotFound")
            return
        file = folder.joinpath(*parts[4:])
        if not file.is_file():
            self._refuse(404, "EntryNotFound")
            return
        self._send(file, body)

    def _send(self, file: Path, body: bool) -> None:
        size, wanted = file.stat().st_size, self.headers.get("Range")
        first, last, status = 0, size - 1, 200
        if wanted and self.server.ranges:
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last, status = int(begin), min(int(end or last), last), 206
        self.send_response(status)
        self.send_header("ETag", f'"{hashlib.sha256(file.read_bytes()[:1000]).hexdigest()[:40]}"')
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", str(last - first + 1))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        if body:
            with file.open("rb") as opened:
                opened.seek(first)
                left = last - first + 1
                while left:
                    data = opened.read(min(left, 65536))
                    self.wfile.write(data)
                    self.server.sent += len(data)
                    left -= len(data)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving(root: Path) -> Iterator[Hub]:
    """A hub while the block runs."""
    hub = Hub(root)
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()
