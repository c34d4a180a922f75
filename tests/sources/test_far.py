"""Models at addresses: plain HTTP, an object store under fsspec, ModelScope, all on loopback."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from llmcalc.sources import presets
from tests.conftest import Ran
from tests.sources.test_far_gguf import PARAMS, tensors, write

Cli = Callable[..., Ran]
CONNECT = socket.socket.connect
TOY = 140_544
"""Parameters of the toy, as its own header counts them."""


class Files(ThreadingHTTPServer):
    """Plain files with ranges, and ModelScope's two addresses, below one directory."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.root, self.sent, self.ranges = root, 0, True
        self.fails: dict[str, int] = {}
        self.tokens: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Files

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""

    def do_GET(self) -> None:
        asked = urlsplit(self.path)
        self.server.tokens.append(self.headers.get("Authorization"))
        query = parse_qs(asked.query)
        parts = unquote(asked.path).strip("/").split("/")
        for ending, status in self.server.fails.items():
            if self.path.endswith(ending):
                self._say(status, b"")
                return
        if parts[:3] == ["api", "v1", "models"] and parts[-1] == "files":
            self._list(self.server.root / parts[3] / parts[4])
            return
        if parts[:3] == ["api", "v1", "models"]:
            assert query["Revision"] == ["master"]
            parts = [*parts[3:5], *query["FilePath"][0].split("/")]
        file = self.server.root.joinpath(*parts)
        self._send(file.read_bytes()) if file.is_file() else self._say(404, b"no such file")

    def _list(self, folder: Path) -> None:
        if not folder.is_dir():
            self._say(404, b'{"Code": 10010205001, "Message": "record not found"}')
            return
        files = [
            {"Path": str(p.relative_to(folder)), "Type": "blob", "Size": p.stat().st_size}
            for p in sorted(folder.rglob("*"))
            if p.is_file()
        ]
        self._say(200, json.dumps({"Code": 200, "Data": {"Files": files}}).encode())

    def _send(self, data: bytes) -> None:
        wanted = self.headers.get("Range")
        if not (wanted and self.server.ranges):
            self._say(200, data)
            return
        first, last = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        self._say(206, part, f"bytes {first}-{first + len(part) - 1}/{len(data)}")

    def _say(self, status: int, data: bytes, content_range: str | None = None) -> None:
        self.server.sent += len(data)
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        if content_range:
            self.send_header("Content-Range", content_range)
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    monkeypatch.setenv("LLMCALC_CACHE_DIR", str(tmp_path / "cache"))
    root = tmp_path / "root"
    write(root / "org" / "gguf" / "m-f16.gguf", list(tensors()))
    shutil.copytree(presets.TOY, root / "org" / "toy")
    server = Files(root)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("MODELSCOPE_ENDPOINT", server.url)

    def loopback(self: socket.socket, address: tuple[str, int]) -> None:
        assert address[0] == "127.0.0.1"
        CONNECT(self, address)

    monkeypatch.setattr(socket.socket, "connect", loopback)
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("ranges", [True, False])
def test_a_gguf_at_an_address(cli: Cli, files: Files, ranges: bool) -> None:
    files.ranges = ranges
    address = f"{files.url}/org/gguf/m-f16.gguf"
    facts = json.loads(cli("params", address, "--json").out)["facts"]
    assert facts["total_params"] == PARAMS
    answer = json.loads(cli("kvcache", address, "--ctx", 128, "--json").out)
    # 3 layers, 2 key/value heads of 8, keys and values in 2 bytes
    assert answer["facts"]["kv_bytes"] == 2 * 3 * 2 * 8 * 128 * 2


def test_only_the_table_is_fetched(cli: Cli, files: Files) -> None:
    path = files.root / "org" / "gguf" / "m-f16.gguf"
    with path.open("ab") as file:
        file.write(bytes(0))
    assert cli("check", f"{files.url}/org/gguf/m-f16.gguf").code == 0
    weights = sum(t.stat().st_size for t in [path])
    assert files.sent < 2 * weights + (1 << 21)


def test_a_safetensors_file_and_its_config(cli: Cli, files: Files) -> None:
    address = f"{files.url}/org/toy/model.safetensors"
    found = json.loads(cli("params", address, "--json").out)
    assert found["facts"]["total_params"] == TOY and found["model"]["family"] == "llama"
    assert cli("check", address).code == 0
    assert cli("params", f"{files.url}/org/toy/config.json", "--expect", TOY).code == 0


def test_modelscope(cli: Cli, files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODELSCOPE_API_TOKEN", "secret")
    assert cli("params", "ms:org/toy", "--expect", TOY).code == 0
    assert cli("check", "ms:org/toy").code == 0
    assert cli("tokenize", "--model", "ms:org/toy", "--count", "abc").out == "3\n"
    assert cli("params", "ms:org/gguf", "--expect", PARAMS).code == 0
    assert cli("params", "ms:org/gguf:f16", "--expect", PARAMS).code == 0
    assert cli("params", "ms:org/toy:model.safetensors", "--expect", TOY).code == 0
    assert set(files.tokens) == {"Bearer secret"}


def test_what_is_not_there_is_one_line(cli: Cli, files: Files) -> None:
    for name, code in (
        (f"{files.url}/org/gguf/none.gguf", 3),
        ("ms:org/none", 3),
        ("ms:nobody", 2),
        ("ms:org/../x", 2),
        (f"{files.url}/org/gguf/readme.txt", 2),
    ):
        ran = cli("params", name)
        assert ran.code == code, ran.err
        assert ran.err.startswith("error: ") and "Traceback" not in ran.err
    files.fails["m-f16.gguf"] = 403
    ran = cli("params", f"{files.url}/org/gguf/m-f16.gguf")
    assert ran.code == 3 and "403" in ran.err and "hint:" in ran.err
    files.shutdown()
    files.server_close()
    assert cli("params", f"{files.url}/org/toy/config.json").code == 3


class Store(MemoryFileSystem):
    """An object store in memory, under the scheme of a real one."""

    protocol = ("s3", "gs")


def test_an_object_store(cli: Cli, files: Files) -> None:
    fsspec.register_implementation("s3", Store, clobber=True)
    try:
        system = fsspec.filesystem("s3")
        path = files.root / "org" / "gguf" / "m-f16.gguf"
        system.pipe("s3://bucket/models/m-f16.gguf", path.read_bytes())
        assert cli("params", "s3://bucket/models/m-f16.gguf", "--expect", PARAMS).code == 0
        assert cli("params", "s3://bucket/models/none.gguf").code == 3
    finally:
        fsspec.register_implementation("s3", "s3fs.S3FileSystem", clobber=True)


def test_a_store_whose_package_is_missing(cli: Cli) -> None:
    ran = cli("params", "oci://bucket/m.gguf")
    assert ran.code == 3 and "Traceback" not in ran.err
