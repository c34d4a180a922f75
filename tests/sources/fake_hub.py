"""A hub on loopback: the routes that huggingface_hub uses, fed from directories, failing in every
way when asked to.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """A server of ``root/org/name/file``, told by a path's ending how to fail.

    ``fails`` maps it to a status; ``busy`` to statuses with a Retry-After that are answered first,
    one request each; ``cuts`` to how often a body ends in its middle; ``changes`` to how often a
    file is another one at the next request; ``elsewhere`` is the server that weights are redirected
    to. ``latency`` is in seconds per request, ``rate`` in bytes per second of all connections
    together.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.root, self.fails, self.ranges = root, dict[str, int](), True
        self.busy, self.cuts, self.changes = (
            dict[str, list[tuple[int, str]]](),
            dict[str, int](),
            dict[str, int](),
        )
        self.elsewhere: Hub | None = None
        self.latency, self.rate = 0.0, 0.0
        self.tag: str | None = None
        self.commit = COMMIT
        self.asked, self.tokens, self.sent = Counter[str](), dict[str, str | None](), 0
        self.lock, self.free_at = threading.Lock(), 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has read enough closes the connection."""

    def pace(self, n_bytes: int) -> None:
        """Waits as long as so many bytes take at the server's rate."""
        if self.rate:
            with self.lock:
                self.free_at = max(self.free_at, time.monotonic()) + n_bytes / self.rate
                until = self.free_at
            time.sleep(max(until - time.monotonic(), 0))


class Answer(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16
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
        time.sleep(hub.latency)
        with hub.lock:
            hub.asked[f"{self.command} {self.path}"] += 1
            hub.tokens[self.path] = self.headers.get("Authorization")
        for ending, answers in hub.busy.items():
            if self.path.endswith(ending) and answers:
                self._refuse(*answers.pop(0))
                return
        for ending, status in hub.fails.items():
            if self.path.endswith(ending):
                self._refuse(
                    status,
                    code={401: "GatedRepo", 403: "GatedRepo", 404: "RepoNotFound"}.get(status, ""),
                )
                return
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[:2] == ["api", "models"] and len(parts) in (4, 6):
            self._list(hub.root / parts[2] / parts[3], tree="tree" in parts[4:5])
        elif (
            len(parts) < 5 or parts[2] != "resolve" or not (hub.root / parts[0] / parts[1]).is_dir()
        ):
            self._refuse(404, code="RepoNotFound")
        elif parts[3] not in ("main", COMMIT):
            self._refuse(404, code="RevisionNotFound")
        else:
            file = (hub.root / parts[0] / parts[1]).joinpath(*parts[4:])
            self._send(file, body) if file.is_file() else self._refuse(404, code="EntryNotFound")

    def _list(self, folder: Path, tree: bool) -> None:
        """What is known of a repository, or its files alone."""
        if not folder.is_dir():
            self._refuse(404, code="RepoNotFound")
            return
        sizes = {
            str(p.relative_to(folder)): p.stat().st_size
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        }
        siblings = [{"rfilename": name} for name in sizes]
        info: object = {
            "id": "/".join(folder.parts[-2:]),
            "sha": COMMIT,
            "siblings": siblings,
            **self._about(folder),
        }
        if tree:
            info = [{"type": "file", "path": name, "size": size} for name, size in sizes.items()]
        text = json.dumps(info).encode()
        self.server.sent += len(text)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _about(self, folder: Path) -> dict[str, object]:
        """What the hub reads out of a config."""
        config = folder / "config.json"
        try:
            read = json.loads(config.read_text()) if config.is_file() else {}
        except (ValueError, RecursionError):
            return {}
        told = ("architectures", "model_type", "auto_map", "quantization_config")
        kept = {key: read[key] for key in told if isinstance(read, dict) and key in read}
        return {"library_name": "transformers", "config": kept} if kept else {}

    def _spend(self, counts: dict[str, int]) -> bool:
        """Whether this request is one of those that fail in some way."""
        for ending, n in counts.items():
            if self.path.endswith(ending) and n and self.command == "GET":
                counts[ending] -= 1
                return True
        return False

    def _send(self, file: Path, body: bool) -> None:
        size, wanted = file.stat().st_size, self.headers.get("Range")
        with file.open("rb") as opened:  # the beginning: a file may be a hole of many GB
            tag = hashlib.sha256(opened.read(100_000)).hexdigest()[:40]
        if self.server.elsewhere is not None and file.suffix in (".safetensors", ".gguf"):
            self.send_response(302)
            self.send_header("Location", self.server.elsewhere.url + self.path)
            self.send_header("X-Linked-Size", str(size))
            self.send_header("X-Linked-Etag", f'"{tag}"')
            self._end(0)
            return
        first, last, status = 0, size - 1, 200
        if wanted and self.server.ranges:
            begin, _, end = wanted.removeprefix("bytes=").partition("-")
            first, last, status = int(begin), min(int(end or last), last), 206
            if first >= size:
                self._refuse(416)
                return
        if self._spend(self.server.changes):
            tag = hashlib.sha256(tag.encode() + str(time.monotonic()).encode()).hexdigest()[:40]
        cut = self._spend(self.server.cuts)
        self.send_response(status)
        self.send_header("ETag", f'"{tag}"' if self.server.tag is None else self.server.tag)
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self._end(last - first + 1)
        if body:
            self._body(file, first, (last - first + 1) // 2 if cut else last - first + 1)
        if cut:
            self.close_connection = True

    def _end(self, length: int) -> None:
        self.send_header("X-Repo-Commit", self.server.commit)
        self.send_header("Content-Length", str(length))
        self.end_headers()

    def _body(self, file: Path, first: int, left: int) -> None:
        with file.open("rb") as opened:
            opened.seek(first)
            while left:
                data = opened.read(min(left, 65536))
                self.server.pace(len(data))
                self.wfile.write(data)
                self.server.sent += len(data)
                left -= len(data)

    def _refuse(self, status: int, wait: str = "", code: str = "") -> None:
        self.send_response(status)
        if wait:
            self.send_header("Retry-After", wait)
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
