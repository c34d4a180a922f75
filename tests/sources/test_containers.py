"""The table of docs/files.md: every container under every command, executed.

A cell is ``exact`` where the answer is that of the plain directory of the same model, ``file``
where the tensors of the file alone are counted, ``text`` where the language model alone is, and
``-`` where the command refuses in one line.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Ran
from tests.sources.test_in_hand import LLAMA, directory, tensors

Cli = Callable[..., Ran]
DOCS = Path(__file__).parents[2] / "docs" / "files.md"
COMMANDS: dict[str, tuple[object, ...]] = {
    "params": (),
    "check": (),
    "kvcache": ("--ctx", 64),
    "fit": ("--device-memory", "24GiB", "--ctx", 64),
    "speed": ("--device", "h100", "--ctx", 64),
    "train": ("--tokens", 64),
    "trace": ("--tokens", 4),
}


def sharded(path: Path) -> Path:
    held, names = tensors(), sorted(tensors())
    directory(path, LLAMA, None)
    for shard, inside in (("a", names[:5]), ("b", names[5:])):
        save_file({n: held[n] for n in inside}, path / f"{shard}.safetensors")
    places = {n: "a.safetensors" if n in names[:5] else "b.safetensors" for n in names}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return path


def gguf(path: Path) -> Path:
    """The same model by gguf's own writer."""
    writer_of = pytest.importorskip("gguf")
    path.mkdir(parents=True)
    writer = writer_of.GGUFWriter(path / "m.gguf", "llama")
    for add, value in (
        (writer.add_context_length, 512),
        (writer.add_embedding_length, 64),
        (writer.add_block_count, 2),
        (writer.add_feed_forward_length, 128),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_layer_norm_rms_eps, 1e-5),
        (writer.add_vocab_size, 100),
    ):
        add(value)
    words = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "model.layers": "blk",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    for name, data in tensors().items():
        for old, new in words.items():
            name = name.replace(old, new)
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path / "m.gguf"


def wrapped(path: Path, held: bool) -> Path:
    raw = {"model_type": "sees", "text_config": LLAMA, "vision_config": {"depth": 1}}
    inside = {f"language_model.{n}": t for n, t in tensors().items()}
    inside["vision.blocks.0.w.weight"] = np.zeros((8, 8), np.float16)
    return directory(path, raw, inside if held else None)


UNKNOWN: dict[str, Any] = {**LLAMA, "model_type": "brandnew"}
CONTAINERS: dict[str, Callable[[Path], Path]] = {
    "config.json alone": lambda p: directory(p, LLAMA, None),
    "directory with config.json and model.safetensors": lambda p: directory(p, LLAMA, tensors()),
    "directory with shards and their index": sharded,
    "model.safetensors with a config.json beside it": lambda p: (
        directory(p, LLAMA, tensors()) / "model.safetensors"
    ),
    "model.safetensors alone": lambda p: directory(p, None, tensors()) / "model.safetensors",
    "one shard of several": lambda p: sharded(p) / "a.safetensors",
    "GGUF": gguf,
    "unknown architecture, config.json alone": lambda p: directory(p, UNKNOWN, None),
    "unknown architecture with weights": lambda p: directory(p, UNKNOWN, tensors()),
    "known language model in an unknown one, config.json alone": lambda p: wrapped(p, held=False),
    "known language model in an unknown one, with weights": lambda p: wrapped(p, held=True),
}


def cell(cli: Cli, command: str, path: Path, exact: dict[str, Any]) -> str:
    """What a command makes of a container."""
    ran = cli(command, path, *COMMANDS[command], "--json")
    if ran.code in (2, 3):
        assert ran.err.startswith("error: ") and "Traceback" not in ran.err, ran.err
        return "-"
    assert ran.code in (0, 1), ran.err
    found = json.loads(ran.out)
    if "the language model alone" in " ".join(found["notes"]):
        return "text"
    if "not explained" in " ".join(found["notes"]) or found["facts"].get("fits", 0) is None:
        return "file"
    if command == "params" and found["model"]["family"] is None:
        return "file"
    keys = {
        "params": "total_params",
        "kvcache": "kv_bytes",
        "train": "peak_bytes",
        "trace": "params",
    }
    key = keys.get(command)
    if key in exact and found["facts"].get(key) not in (exact[key], None):
        tower = 64 if command == "params" else None
        assert tower is not None and found["facts"][key] == exact[key] + tower
    return "exact"


def table(cli: Cli, root: Path) -> str:
    """The whole table, as docs/files.md has it."""
    plain = directory(root / "plain", LLAMA, tensors())
    exact: dict[str, Any] = {}
    for command, words in COMMANDS.items():
        exact |= json.loads(cli(command, plain, *words, "--json").out)["facts"]
    lines = [
        "| what is there | " + " | ".join(f"`{c}`" for c in COMMANDS) + " |",
        "|---|" + "---|" * len(COMMANDS),
    ]
    for number, (name, build) in enumerate(CONTAINERS.items()):
        path = build(root / str(number))
        cells = [cell(cli, command, path, exact) for command in COMMANDS]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_table_of_containers_is_what_happens(cli: Cli, tmp_path: Path) -> None:
    assert table(cli, tmp_path) in DOCS.read_text()
