"""Checkpoints as the real writers make them, and real ones that somebody else wrote."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from llmcalc.sources import gguf, resolve, safetensors
from tests.conftest import Ran

Cli = Callable[..., Ran]

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "vocab_size": 20,
    "tie_word_embeddings": False,
}


def tensors(config: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    """Zeros under the names and shapes that transformers' LlamaForCausalLM has, written out by
    hand.
    """
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    q, kv = (
        config["num_attention_heads"] * config["head_dim"],
        config["num_key_value_heads"] * config["head_dim"],
    )
    shapes = {
        "model.embed_tokens.weight": (v, d),
        "model.norm.weight": (d,),
        "lm_head.weight": (v, d),
    }
    for i in range(config["num_hidden_layers"]):
        p = f"model.layers.{i}"
        shapes |= {
            f"{p}.input_layernorm.weight": (d,),
            f"{p}.post_attention_layernorm.weight": (d,),
            f"{p}.self_attn.q_proj.weight": (q, d),
            f"{p}.self_attn.k_proj.weight": (kv, d),
            f"{p}.self_attn.v_proj.weight": (kv, d),
            f"{p}.self_attn.o_proj.weight": (d, q),
            f"{p}.mlp.gate_proj.weight": (f, d),
            f"{p}.mlp.up_proj.weight": (f, d),
            f"{p}.mlp.down_proj.weight": (d, f),
        }
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small Llama as a directory: config.json and model.safetensors."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    save_file(tensors(LLAMA), tmp_path / "model.safetensors")
    return tmp_path


def shard(
    path: Path, content: dict[str, np.ndarray[Any, Any]], metadata: dict[str, Any] | None = None
) -> None:
    """The same tensors in two files and an index."""
    names = sorted(content)
    places = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({n: content[n] for n in part}, path / file)
        places |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": metadata or {}, "weight_map": places})
    )


def test_a_directory_counts_from_its_config_and_stores_what_its_file_holds(
    cli: Cli, model: Path
) -> None:
    facts = json.loads(cli("params", model, "--json").out)["facts"]
    assert (
        facts["total_params"]
        == sum(t.size for t in tensors(LLAMA).values())
        == facts["stored_elements"]
    )
    assert facts["stored_bytes"] == 4 * facts["total_params"] and facts["elements_by_dtype"] == {
        "float32": facts["total_params"]
    }


def test_a_file_alone_counts_by_tensor(cli: Cli, model: Path) -> None:
    facts = json.loads(cli("params", model / "model.safetensors", "--json").out)["facts"]
    assert facts["total_params"] == sum(t.size for t in tensors(LLAMA).values())


def test_check_accepts_it_whole_in_shards_and_under_another_prefix(cli: Cli, model: Path) -> None:
    assert cli("check", model).code == 0
    content = tensors(LLAMA)
    (model / "model.safetensors").unlink()
    shard(model, content)
    assert cli("check", model).code == 0
    for file in model.glob("*.safetensors*"):
        file.unlink()
    save_file(
        {n.removeprefix("model."): t for n, t in content.items()}, model / "model.safetensors"
    )
    ran = cli("check", model)
    assert ran.code == 0 and "prefix 'model.'" in ran.err


@pytest.mark.parametrize("change", ["missing", "extra", "shape", "layer", "head"])
def test_check_finds_what_was_changed(cli: Cli, model: Path, change: str) -> None:
    content = tensors(LLAMA)
    if change == "missing":
        del content["model.layers.1.mlp.up_proj.weight"]
    elif change == "extra":
        content["model.layers.0.self_attn.q_proj.bias"] = np.zeros(16, np.float32)
    elif change == "shape":
        content["model.norm.weight"] = np.zeros(17, np.float32)
    elif change == "head":
        del content["lm_head.weight"]
    else:
        content = {n: t for n, t in content.items() if ".layers.1." not in n}
    save_file(content, model / "model.safetensors")
    ran = cli("check", model, "--json")
    rows = json.loads(ran.out)["rows"]
    assert ran.code == 1 and len(rows) == 1, rows
    wanted = {
        "missing": ("missing", "model.layers.1.mlp.up_proj.weight", 1),
        "extra": ("extra", "model.layers.0.self_attn.q_proj.bias", 1),
        "shape": ("shape", "model.norm.weight", 1),
        "layer": ("missing", "model.layers.1", 9),
        "head": ("missing", "lm_head.weight", 1),
    }
    assert (rows[0]["kind"], rows[0]["where"], rows[0]["tensors"]) == wanted[change]


def test_check_finds_any_single_planted_change(cli: Cli, model: Path) -> None:
    content = tensors(LLAMA)
    for name in content:
        planted = {n: t for n, t in content.items() if n != name}
        save_file(planted, model / "model.safetensors")
        assert cli("check", model).code == 1, name
        save_file({**planted, name: np.zeros((3, 3), np.float32)}, model / "model.safetensors")
        assert cli("check", model).code == 1, name


def test_known_buffers_and_masks_are_no_differences(cli: Cli, tmp_path: Path) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 8,
        "n_layer": 1,
        "n_head": 2,
        "vocab_size": 10,
        "n_positions": 4,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    shapes: dict[str, tuple[int, ...]] = {
        "wte.weight": (10, 8),
        "wpe.weight": (4, 8),
        "ln_f.weight": (8,),
        "ln_f.bias": (8,),
    }
    for part, shape in {
        "attn.c_attn": (8, 24),
        "attn.c_proj": (8, 8),
        "mlp.c_fc": (8, 32),
        "mlp.c_proj": (32, 8),
    }.items():
        shapes |= {f"h.0.{part}.weight": shape, f"h.0.{part}.bias": shape[1:]}
    for part in ("ln_1", "ln_2"):
        shapes |= {f"h.0.{part}.weight": (8,), f"h.0.{part}.bias": (8,)}
    shapes["h.0.attn.bias"] = (1, 1, 4, 4)
    save_file(
        {f"transformer.{n}": np.zeros(s, np.float32) for n, s in shapes.items()},
        tmp_path / "model.safetensors",
    )
    assert cli("check", tmp_path).code == 0
    facts = json.loads(cli("params", tmp_path / "model.safetensors", "--json").out)["facts"]
    assert facts["buffer_params"] == 16


def test_an_index_that_lies_about_its_total(cli: Cli, model: Path) -> None:
    # huggingface/huggingface_hub#4221: a copied metadata block made a 7.6 B model show as 333 k
    (model / "model.safetensors").unlink()
    shard(model, tensors(LLAMA), {"total_parameters": 333312, "total_size": 1})
    ran = cli("params", model, "--json")
    data = json.loads(ran.out)
    assert data["facts"]["total_params"] == sum(t.size for t in tensors(LLAMA).values())
    assert any("333312" in note and "the shards count" in note for note in data["notes"])


def test_an_index_that_names_a_tensor_its_shard_lacks(cli: Cli, model: Path) -> None:
    (model / "model.safetensors").unlink()
    content = tensors(LLAMA)
    shard(model, content)
    index = json.loads((model / "model.safetensors.index.json").read_text())
    file = index["weight_map"]["model.norm.weight"]
    save_file(
        {
            n: t
            for n, t in content.items()
            if index["weight_map"][n] == file and n != "model.norm.weight"
        },
        model / file,
    )
    ran = cli("check", model)
    assert ran.code == 1 and "model.norm.weight" in ran.out and file in ran.out


def test_an_index_that_leaves_its_directory(cli: Cli, model: Path) -> None:
    inside = model / "inside"
    inside.mkdir()
    (inside / "config.json").write_text(json.dumps(LLAMA))
    for name in (
        "../model.safetensors",
        "/etc/passwd",
        "a/../../model.safetensors",
        "..\\model.safetensors",
        "..",
    ):
        (inside / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {"w": name}})
        )
        ran = cli("params", inside)
        assert ran.code == 2 and "outside the model directory" in ran.err, name


def test_a_missing_shard_is_named(cli: Cli, model: Path) -> None:
    (model / "model.safetensors").unlink()
    shard(model, tensors(LLAMA))
    (model / "model-00002-of-00002.safetensors").unlink()
    ran = cli("params", model)
    assert ran.code == 2 and "model-00002-of-00002.safetensors" in ran.err


def test_an_index_of_250_000_names_is_read_whole(cli: Cli, tmp_path: Path) -> None:
    names = [f"model.layers.{i:06}.{'x' * 60}.weight" for i in range(250_000)]
    save_file({"w": np.zeros(1, np.float32)}, tmp_path / "one.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict.fromkeys(names, "one.safetensors")})
    )
    ran = cli("params", tmp_path / "model.safetensors.index.json", "--json")
    assert ran.code == 0 and json.loads(ran.out)["facts"]["total_params"] == 1


def test_a_sparse_200_gb_file_costs_what_a_small_one_does(tmp_path: Path) -> None:
    path, elements = tmp_path / "model.safetensors", 100 * 10**9
    text = json.dumps(
        {"w": {"dtype": "BF16", "shape": [elements], "data_offsets": [0, 2 * elements]}}
    ).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + 2 * elements)
    code = (
        "import resource; from pathlib import Path; from llmcalc.sources.safetensors import"
        " read;before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; h ="
        f" read(Path({str(path)!r}));print(h.elements,"
        " resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    start = time.process_time()
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert time.process_time() - start < 5
    assert int(out[0]) == elements and int(out[1]) < 20_000  # KiB


def test_a_pickle_is_refused_with_the_way_out(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(b"\x80\x02.")
    ran = cli("params", path)
    assert ran.code == 2 and "pickle" in ran.err and "safetensors" in ran.err


def test_no_such_file_and_a_directory_with_nothing(cli: Cli, tmp_path: Path) -> None:
    ran = cli("params", tmp_path / "config.json")
    assert ran.code == 2 and "no file" in ran.err
    ran = cli("params", tmp_path)
    assert ran.code == 2 and "no config.json" in ran.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read(cli: Cli, model: Path) -> None:
    (model / "config.json").chmod(0)
    assert cli("params", model / "config.json").code == 2


PACKED = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": 32,
}


def packed(path: Path, method: str) -> None:
    """A Llama with its seven matrices packed in 4 bits, by the layouts of AutoGPTQ, llm-awq and
    bitsandbytes.
    """
    config = {**LLAMA, **PACKED, "torch_dtype": "float16"}
    settings = {
        "gptq": {"bits": 4, "group_size": 32},
        "awq": {"bits": 4, "group_size": 32},
        "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    }
    (path / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": method, **settings[method]}})
    )
    content: dict[str, np.ndarray[Any, Any]] = {}
    for name, value in tensors(config).items():
        if "_proj" not in name:
            content[name] = value.astype(np.float16)
            continue
        (out, inn), base = value.shape, name.removesuffix(".weight")
        groups = inn // 32
        if method == "bitsandbytes":
            content[name] = np.zeros((out * inn // 2, 1), np.uint8)
            content[f"{name}.absmax"] = np.zeros(out * inn // 64, np.float32)
            content[f"{name}.quant_map"] = np.zeros(16, np.float32)
            content[f"{name}.quant_state.bitsandbytes__nf4"] = np.zeros(80, np.uint8)
        else:
            rows = (inn // 8, out) if method == "gptq" else (inn, out // 8)
            content[f"{base}.qweight"] = np.zeros(rows, np.int32)
            content[f"{base}.qzeros"] = np.zeros((groups, out // 8), np.int32)
            content[f"{base}.scales"] = np.zeros((groups, out), np.float16)
            if method == "gptq":
                content[f"{base}.g_idx"] = np.zeros(inn, np.int32)
    save_file(content, path / "model.safetensors")


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes"])
def test_packed_integers_are_not_parameters(cli: Cli, tmp_path: Path, method: str) -> None:
    # huggingface/huggingface.js#1770, AlexsJones/llmfit#1045, unslothai/unsloth#2855: 8 B models
    # showed as 2 B
    packed(tmp_path, method)
    facts = json.loads(cli("params", tmp_path, "--json").out)["facts"]
    assert facts["total_params"] == 11360  # the same model built by transformers on the meta device
    assert facts["stored_elements"] < facts["total_params"]
    assert facts["stored_bytes"] == facts["weight_bytes"]["stored"] < 2 * facts["total_params"]
    ran = cli("check", tmp_path)
    assert ran.code == 0, ran.out
    beside = json.loads(cli("params", tmp_path / "model.safetensors", "--json").out)["facts"]
    assert beside["total_params"] == 11360  # by the config.json that lies beside the file
    (tmp_path / "config.json").unlink()
    alone = json.loads(cli("params", tmp_path / "model.safetensors", "--json").out)
    assert any("packed integers" in note for note in alone["notes"])


def test_a_real_gguf_smollm2(cli: Cli, smollm2: Path) -> None:
    data = json.loads(cli("params", smollm2, "--json").out)
    facts = data["facts"]
    assert (
        facts["total_params"] == 134515008 and facts["tied"] and data["model"]["family"] == "llama"
    )
    assert facts["stored_bytes"] == 96576768 and round(facts["bits_per_element"], 3) == 5.744
    assert facts["n_tensors"] == 272
    config = resolve(str(smollm2)).config
    assert (config.n_heads, config.n_kv_heads, config.n_layers, config.head_dim) == (9, 3, 30, 64)
    assert cli("check", smollm2).code == 0


def test_a_real_gguf_with_one_layer_too_few(cli: Cli, smollm2: Path) -> None:
    ran = cli("check", smollm2, "--set", "n_layers=29")
    assert ran.code == 1 and "blk.29" in ran.out


def test_a_real_safetensors_minilm(cli: Cli, minilm: Path) -> None:
    facts = json.loads(cli("params", minilm, "--json").out)["facts"]
    # 104 tensors, 22,713,728 elements of which 512 are int64 positions
    assert (facts["total_params"], facts["buffer_params"], facts["n_tensors"]) == (
        22713216,
        512,
        104,
    )
    whole = json.loads(cli("params", minilm.parent, "--json").out)["facts"]
    assert whole["total_params"] == 22713216
    assert cli("check", minilm.parent).code == 0


def test_gguf_as_the_real_writer_makes_it(cli: Cli, tmp_path: Path) -> None:
    writer_of = pytest.importorskip("gguf")
    path = tmp_path / "f.gguf"
    writer = writer_of.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(16)
    writer.add_feed_forward_length(32)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_context_length(64)
    shapes = {
        "token_embd.weight": (20, 16),
        "output_norm.weight": (16,),
        "blk.0.attn_norm.weight": (16,),
        "blk.0.ffn_norm.weight": (16,),
        "blk.0.attn_q.weight": (16, 16),
        "blk.0.attn_k.weight": (8, 16),
        "blk.0.attn_v.weight": (8, 16),
        "blk.0.attn_output.weight": (16, 16),
        "blk.0.ffn_gate.weight": (32, 16),
        "blk.0.ffn_up.weight": (32, 16),
        "blk.0.ffn_down.weight": (16, 32),
    }
    for name, shape in shapes.items():
        writer.add_tensor(name, np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = gguf.read(path)
    assert {n: t.shape for n, t in found.tensors.items()} == shapes
    facts = json.loads(cli("params", path, "--json").out)["facts"]
    assert facts["total_params"] == sum(int(np.prod(s)) for s in shapes.values()) and facts["tied"]
    assert cli("check", path).code == 0
    # a directory that holds the file alone is the same model, with its family
    alone = json.loads(cli("trace", path.parent, "--json").out)
    assert alone["rows"] == json.loads(cli("trace", path, "--json").out)["rows"]


def test_the_safetensors_reader_agrees_with_the_library(model: Path) -> None:
    from safetensors import safe_open

    mine = safetensors.read(model / "model.safetensors")
    with safe_open(model / "model.safetensors", "np") as theirs:
        assert set(theirs.keys()) == set(mine.tensors)
        for name in theirs.keys():  # noqa: SIM118
            assert tuple(theirs.get_slice(name).get_shape()) == mine.tensors[name].shape
