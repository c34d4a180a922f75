"""GGUF files inside a repository, split ones, and those that other programs keep on this
machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFWriter

from llmcalc.sources import gguf
from llmcalc.sources.from_hub import choose
from tests.conftest import Ran
from tests.sources.fake_hub import COMMIT, Hub, serving
from tests.sources.test_hub import ran

Cli = Callable[..., Ran]
LAYERS, D, FF, VOCAB = 3, 32, 64, 4000


def tensors() -> dict[str, tuple[int, ...]]:
    block = {
        "attn_norm": (D,),
        "attn_q": (D, D),
        "attn_k": (D // 2, D),
        "attn_v": (D // 2, D),
        "attn_output": (D, D),
        "ffn_norm": (D,),
        "ffn_gate": (FF, D),
        "ffn_up": (FF, D),
        "ffn_down": (D, FF),
    }
    each = {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in block.items()}
    return {
        "token_embd.weight": (VOCAB, D),
        "output_norm.weight": (D,),
        "output.weight": (VOCAB, D),
        **each,
    }


PARAMS = sum(int(np.prod(shape)) for shape in tensors().values())


def write(path: Path, names: list[str], split: tuple[int, int] | None = None) -> None:
    """A small Llama by gguf's own writer, with a vocabulary that makes its table longer than any
    first window.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(D)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"{'t' * 400}{i}" for i in range(VOCAB)])
    if split is not None:
        writer.add_uint16("split.no", split[0])
        writer.add_uint16("split.count", split[1])
        writer.add_int32("split.tensors.count", len(tensors()))
    for name in names:
        writer.add_tensor(name, np.zeros(tensors()[name], dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    root = tmp_path / "hub"
    names = list(tensors())
    write(root / "org" / "packed" / "small-F16.gguf", names)
    write(root / "org" / "packed" / "small-Q8_0.gguf", names)
    for i in range(3):
        write(
            root / "org" / "packed" / f"Q4_K_M/small-Q4_K_M-{i + 1:05}-of-00003.gguf",
            names[i::3],
            (i, 3),
        )
    write(root / "org" / "single" / "only.gguf", names)
    with serving(root) as server:
        yield server


@pytest.mark.parametrize(
    "name",
    [
        "org/packed:small-F16.gguf",
        "org/packed:F16",
        "org/packed:q8_0",
        "org/packed:Q4_K_M",
        "hf.co/org/packed:Q8_0",
        "https://huggingface.co/org/packed/blob/main/small-F16.gguf",
        f"org/packed@{COMMIT}:Q8_0",
        "org/packed:Q4_K_M/small-Q4_K_M-00002-of-00003.gguf",
        "org/single",
    ],
)
def test_a_gguf_by_its_name_or_quantisation(hub: Hub, tmp_path: Path, name: str) -> None:
    home = tmp_path / "home"
    found = ran(hub, home, "params", name, "--json")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert data["facts"]["total_params"] == PARAMS and data["model"]["family"] == "llama"
    cache = ran(hub, home, "kvcache", name, "--ctx", "100", "--json")
    assert json.loads(cache.out)["facts"]["kv_bytes"] == 2 * LAYERS * 2 * 8 * 100 * 2
    assert ran(hub, home, "params", name, HF_HUB_OFFLINE="1").code == 0


def test_the_table_is_read_and_no_weight(hub: Hub, tmp_path: Path) -> None:
    path = hub.root / "org" / "single" / "only.gguf"
    table = path.stat().st_size - 2 * PARAMS
    assert table > 1 << 20  # longer than the first window
    assert ran(hub, tmp_path / "home", "params", "org/single").code == 0
    assert table <= hub.sent < 2 * table + (1 << 20)
    hub.cuts = {"only.gguf": 2}
    assert ran(hub, tmp_path / "again", "params", "org/single").code == 0


@pytest.mark.parametrize("name", ["small-F16.gguf", "Q4_K_M"])
def test_an_exact_revision_never_asks_twice(hub: Hub, tmp_path: Path, name: str) -> None:
    first = ran(hub, tmp_path / "home", "params", f"org/packed@{COMMIT}:{name}", "--json")
    asked = sum(hub.asked.values())
    second = ran(hub, tmp_path / "home", "params", f"org/packed@{COMMIT}:{name}", "--json")
    assert first.code == second.code == 0 and first.out == second.out
    assert sum(hub.asked.values()) == asked


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("org/packed", "5 GGUF files"),
        ("org/packed:Q5_K_M", "no GGUF of Q5_K_M"),
        ("org/packed:small-F61.gguf", "small-F61.gguf"),
        ("org/packed:readme.md", "neither"),
    ],
)
def test_wrong_names(hub: Hub, tmp_path: Path, name: str, says: str) -> None:
    found = ran(hub, tmp_path / "home", "params", name)
    want = "3 GGUF files" if says == "5 GGUF files" else says
    assert found.code in (2, 3) and want in found.err and "hint: " in found.err


def test_the_right_file_is_chosen() -> None:
    names = [
        "a-Q4_K_M.gguf",
        "a-UD-Q4_K_M.gguf",
        "a-Q4_K_S.gguf",
        "mmproj-a-F16.gguf",
        "b/a-BF16-00001-of-00002.gguf",
    ]
    names.append("b/a-BF16-00002-of-00002.gguf")
    assert choose(names, "Q4_K_M", "x") == "a-Q4_K_M.gguf"
    assert choose(names, "ud-q4_k_m", "x") == "a-UD-Q4_K_M.gguf"
    assert choose(names, "bf16", "x") == "b/a-BF16-00001-of-00002.gguf"


def test_a_split_model_is_counted_whole(cli: Cli, tmp_path: Path) -> None:
    names = list(tensors())
    for i in range(2):
        write(tmp_path / f"m-{i + 1:05}-of-00002.gguf", names[i::2], (i, 2))
    for what in (tmp_path, tmp_path / "m-00001-of-00002.gguf", tmp_path / "m-00002-of-00002.gguf"):
        ran_ = cli("params", what, "--json")
        assert json.loads(ran_.out)["facts"]["total_params"] == PARAMS
    (tmp_path / "m-00002-of-00002.gguf").rename(tmp_path / "else.gguf")
    found = cli("params", tmp_path / "m-00001-of-00002.gguf")
    assert found.code == 2 and "m-00002-of-00002.gguf is missing" in found.err
    found = cli("params", tmp_path / "else.gguf")
    assert found.code == 2 and "split into 2 files" in found.err


@pytest.mark.parametrize("step", [100, 4096])
def test_the_beginning_says_how_much_more_it_needs(tmp_path: Path, step: int) -> None:
    write(tmp_path / "m.gguf", list(tensors()))
    data = (tmp_path / "m.gguf").read_bytes()
    whole, end = gguf.parse_beginning(data, len(data), "m")
    n, rounds = 32, 0
    while True:
        try:
            found, used = gguf.parse_beginning(data[:n], len(data), "m")
            break
        except gguf.MoreNeeded as more:
            assert n < more.n_bytes <= end + 16
            n, rounds = max(more.n_bytes, n + step * 256), rounds + 1
    assert (found, used) == (whole, end) and rounds > 1


def manifest(root: Path, name: str, blob: bytes) -> None:
    digest = hashlib.sha256(blob).hexdigest()
    (root / "blobs").mkdir(parents=True, exist_ok=True)
    (root / "blobs" / f"sha256-{digest}").write_bytes(blob)
    path = root / "manifests" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:" + "0" * 64},
        {
            "mediaType": "application/vnd.ollama.image.model",
            "digest": f"sha256:{digest}",
            "size": len(blob),
        },
    ]
    path.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with models of Ollama, LM Studio and llama.cpp."""
    write(tmp_path / "m.gguf", list(tensors()))
    blob = (tmp_path / "m.gguf").read_bytes()
    home = tmp_path / "home"
    for name in ("library/llama3/latest", "library/llama3/8b", "someone/own/q4"):
        manifest(home / ".ollama" / "models", f"registry.ollama.ai/{name}", blob)
    manifest(home / ".ollama" / "models", "hf.co/org/packed/Q8_0", blob)
    for path in (
        ".lmstudio/models/org/packed/small-Q8_0.gguf",
        ".cache/llama.cpp/org_packed_small-Q8_0.gguf",
    ):
        (home / path).parent.mkdir(parents=True)
        (home / path).write_bytes(blob)
    monkeypatch.setenv("HOME", str(home))
    for variable in ("OLLAMA_MODELS", "LLAMA_CACHE", "XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(variable, raising=False)
    return home


@pytest.mark.parametrize(
    "name",
    [
        "ollama:llama3",
        "ollama:llama3:8b",
        "ollama:someone/own:q4",
        "ollama:hf.co/org/packed:Q8_0",
        "lmstudio:org/packed",
        "lmstudio:org/packed/small-Q8_0.gguf",
        "lmstudio:packed:q8_0",
        "llama.cpp:org_packed_small-Q8_0.gguf",
        "llama.cpp:packed:Q8_0",
    ],
)
def test_models_of_other_programs(cli: Cli, home: Path, name: str) -> None:
    found = cli("params", name, "--json")
    assert found.code == 0, found.err
    data = json.loads(found.out)
    assert data["facts"]["total_params"] == PARAMS and data["model"]["name"] == name


def test_they_are_listed_by_the_names_that_find_them(cli: Cli, home: Path) -> None:
    names = [row["name"] for row in json.loads(cli("list", "local", "--json").out)["rows"]]
    assert (
        len(names) == 6 and "ollama:llama3:8b" in names and "ollama:hf.co/org/packed:Q8_0" in names
    )
    for name in names:
        assert cli("params", name).code == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("ollama:lama3", "llama3:latest"),
        ("ollama:../../../etc/passwd", "no name of a model"),
        ("ollama:a/b/c/d", "no name of a model"),
        ("lmstudio:nothing", "is not there"),
        ("llama.cpp:nothing", "is not there"),
    ],
)
def test_what_is_not_there(cli: Cli, home: Path, name: str, says: str) -> None:
    found = cli("params", name)
    assert found.code == 2 and says in found.err and "Traceback" not in found.err


def test_a_hostile_manifest(cli: Cli, home: Path) -> None:
    path = (
        home
        / ".ollama"
        / "models"
        / "manifests"
        / "registry.ollama.ai"
        / "library"
        / "llama3"
        / "latest"
    )
    for text in (
        '{"layers": 3}',
        "[]",
        "{",
        '{"layers": [{"mediaType": "application/vnd.ollama.image.model"}]}',
    ):
        path.write_text(text)
        assert cli("params", "ollama:llama3").code == 2
    digest = "sha256:../../../../etc/passwd"
    path.write_text(
        json.dumps(
            {"layers": [{"mediaType": "application/vnd.ollama.image.model", "digest": digest}]}
        )
    )
    found = cli("params", "ollama:llama3")
    assert found.code == 2 and "no sha256" in found.err
    path.write_text(path.read_text().replace(digest, "sha256:" + "1" * 64))
    found = cli("params", "ollama:llama3")
    assert found.code == 3 and "ollama pull llama3" in found.err


def test_nothing_is_written(cli: Cli, home: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in home.rglob("*")}
    for name in ("ollama:llama3", "lmstudio:org/packed", "llama.cpp:packed"):
        cli("params", name)
    assert {p: p.stat().st_mtime_ns for p in home.rglob("*")} == before and os.environ[
        "HOME"
    ] == str(home)
