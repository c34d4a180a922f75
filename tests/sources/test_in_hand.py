"""Whatever people have in hand: configs that override layers, architectures that nobody knows,
language models inside larger ones, containers of every kind.

Each is answered, or says what it lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from llmcalc.families import anatomy, config_for
from llmcalc.questions.params import parameters
from tests.conftest import Ran

Cli = Callable[..., Ran]
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
N = 80_448
"""Its parameters, as transformers 5.24.0 builds it."""


def tensors(**more: tuple[int, ...]) -> dict[str, Any]:
    """What transformers writes of it, with further tensors."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (100, 64),
        "model.norm.weight": (64,),
    }
    for i in range(2):
        at = f"model.layers.{i}"
        shapes |= {f"{at}.{n}_layernorm.weight": (64,) for n in ("input", "post_attention")}
        shapes |= {f"{at}.self_attn.{n}_proj.weight": (64, 64) for n in "qo"}
        shapes |= {f"{at}.self_attn.{n}_proj.weight": (32, 64) for n in "kv"}
        shapes |= {f"{at}.mlp.{n}_proj.weight": (128, 64) for n in ("gate", "up")}
        shapes |= {f"{at}.mlp.down_proj.weight": (64, 128)}
    shapes |= more
    random = np.random.default_rng(0)
    return {
        name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()
    }


def directory(path: Path, config: dict[str, Any] | None, held: dict[str, Any] | None) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    if config is not None:
        (path / "config.json").write_text(json.dumps(config))
    if held is not None:
        save_file(held, path / "model.safetensors")
    return path


def facts(ran: Ran) -> dict[str, Any]:
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["facts"])


# --- a file beats its config


@pytest.mark.parametrize("same", [True, False])
def test_a_stored_head_counts_where_it_is_another(cli: Cli, tmp_path: Path, same: bool) -> None:
    held = tensors()
    embedding = held["model.embed_tokens.weight"]
    held["lm_head.weight"] = embedding if same else embedding + np.float16(1)
    path = directory(tmp_path / "m", LLAMA, held)
    ran = cli("params", path, "--json")
    assert facts(ran)["total_params"] == (N if same else N + 6400)
    said = [n for n in json.loads(ran.out)["notes"] if "the file holds another" in n]
    assert bool(said) != same
    assert cli("check", path).code == 0
    assert cli("params", path / "model.safetensors", "--expect", N if same else N + 6400).code == 0


def test_params_says_where_a_file_and_its_config_disagree(cli: Cli, tmp_path: Path) -> None:
    held = tensors()
    del held["model.layers.1.mlp.up_proj.weight"]
    ran = cli("params", directory(tmp_path / "m", LLAMA, held), "--json")
    said = [n for n in json.loads(ran.out)["notes"] if "disagree" in n]
    assert said and "model.layers.1.mlp.up_proj.weight" in said[0] and "72,256" in said[0]
    assert cli("check", tmp_path / "m").code == 1


# --- layers that a config overrides

GEMMA4: dict[str, Any] = {
    "model_type": "gemma4_text",
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 30,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "hidden_size_per_layer_input": 256,
    "vocab_size": 262144,
    "vocab_size_per_layer_input": 262144,
    "sliding_window": 512,
    "tie_word_embeddings": True,
    "num_kv_shared_layers": 0,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
}
"""transformers 5.24.0's class defaults of Gemma4TextConfig."""
WIDE = {f"{i:02}": {"head_dim": 512} for i in range(5, 30, 6)}


def test_overrides_by_layer_as_the_reference_resolves_them() -> None:
    # Gemma4ForCausalLM on the meta device, transformers 5.24.0, both ways of writing the same
    for more in ({"per_layer_config": WIDE}, {"global_head_dim": 512}, {}):
        assert parameters(anatomy(config_for({**GEMMA4, **more}))) == 5_077_177_856


def test_overrides_reach_every_family_and_their_caches(cli: Cli, tmp_path: Path) -> None:
    wide = {"1": {"num_key_value_heads": 4, "intermediate_size": 256}}
    path = directory(tmp_path / "m", {**LLAMA, "per_layer_config": wide}, None)
    # layer 1 has two key/value heads more, 2·(2·16·64), and an MLP twice as wide, 3·128·64
    assert (
        facts(cli("params", path, "--json"))["total_params"] == N + 2 * 2 * 16 * 64 + 3 * 128 * 64
    )
    cache = facts(cli("kvcache", path, "--ctx", 128, "--json"))["kv_bytes"]
    assert cache == 2 * (2 + 4) * 16 * 128 * 2
    assert cli("params", path, "--explain").code == 0


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ({"0": {"nobody_reads_this": 3}}, "no rule reads"),
        ({"0": {"skip": ["self_attn"]}}, "leaves parts of layer 0 out"),
        ({"x": {"head_dim": 3}}, "no layer"),
        ({"0": 3}, "no layer"),
    ],
)
def test_an_override_that_nothing_reads_is_refused(
    cli: Cli, tmp_path: Path, override: dict[str, Any], word: str
) -> None:
    path = directory(tmp_path / "m", {**LLAMA, "per_layer_config": override}, None)
    ran = cli("params", path)
    assert ran.code == 2 and word in ran.err and "Traceback" not in ran.err


# --- architectures that nobody knows


def test_an_unknown_architecture_answers_from_its_file(cli: Cli, tmp_path: Path) -> None:
    unknown = {**LLAMA, "model_type": "brandnew", "architectures": ["LlamaForCausalLM"]}
    path = directory(tmp_path / "m", unknown, tensors())
    assert facts(cli("params", path, "--json"))["total_params"] == N
    assert json.loads(cli("params", path, "--json").out)["model"]["family"] == "brandnew"
    checked = cli("check", path, "--json")
    assert facts(checked)["same"] is None
    fits = cli("fit", path, "--device-memory", "24GiB", "--ctx", 128, "--json")
    assert fits.code == 1 and json.loads(fits.out)["facts"]["verdict"] == "unsure"
    assert json.loads(fits.out)["rows"][0]["bytes"] == 2 * N
    small = cli("fit", path, "--device-memory", "1MiB", "--ctx", 128, "--json")
    assert small.code == 1
    cache = cli("kvcache", path, "--ctx", 128)
    assert cache.code == 2 and "is not known: no family" in cache.err
    assert cli("dtype", "float32", "--model", path).code == 0
    assert cli("kvcache", path, "--as", "llama", "--ctx", 128).code == 0
    # options of fit hold here too
    asking = ("fit", path, "--device-memory", "24GiB", "--ctx", 128, "--json")
    usable = json.loads(fits.out)["facts"]["usable_bytes"]
    used = json.loads(cli(*asking, "--used", "4GiB").out)["facts"]
    assert usable - used["usable_bytes"] == 4 * 2**30
    given = json.loads(cli(*asking, "--weights-measured", "3GiB").out)["facts"]
    assert given["weights_bytes"] == 3 * 2**30
    assert cli(*asking, "--pool-measured", "3GiB").code == 2


def test_a_family_is_not_guessed_from_a_class(cli: Cli, tmp_path: Path) -> None:
    # RWKV-5's published configs name a class that ends like RWKV-4's
    raw = {"model_type": "rwkv5", "architectures": ["RwkvForCausalLM"], "hidden_size": 64}
    ran = cli("kvcache", directory(tmp_path / "m", raw, None), "--ctx", 10)
    assert ran.code == 2 and "no family is known for model_type 'rwkv5'" in ran.err


# --- language models inside larger ones


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config", "thinker_config"])
def test_a_language_model_inside_an_unknown_one(cli: Cli, tmp_path: Path, key: str) -> None:
    raw = {"model_type": "sees", key: LLAMA, "vision_config": {"depth": 3}}
    path = directory(tmp_path / "m", raw, None)
    found = facts(cli("params", path, "--json"))
    assert (found["total_params"], found["text_params"]) == (None, N)
    assert found["not_counted"] == ["vision_config"]
    assert (
        facts(cli("kvcache", path, "--ctx", 128, "--json"))["kv_bytes"] == 2 * 2 * 2 * 16 * 128 * 2
    )
    assert cli("train", path, "--tokens", 128).code == 0
    assert cli("trace", path, "--tokens", 4).code == 0
    ran = cli("params", path, "--expect", N)
    assert ran.code == 2 and "vision_config is not counted" in ran.err


def test_its_towers_are_counted_from_the_file(cli: Cli, tmp_path: Path) -> None:
    held = {f"language_model.{n}": t for n, t in tensors().items()}
    held |= {f"vision.blocks.{i}.w.weight": np.zeros((8, 8), np.float16) for i in range(3)}
    raw = {"model_type": "sees", "text_config": LLAMA, "vision_config": {"depth": 3}}
    path = directory(tmp_path / "m", raw, held)
    assert facts(cli("params", path, "--json"))["total_params"] == N + 3 * 64
    assert cli("check", path).code == 0
    fits = json.loads(cli("fit", path, "--device-memory", "24GiB", "--ctx", 8, "--json").out)
    assert fits["rows"][0]["bytes"] == 2 * (N + 3 * 64)


def test_a_missing_tower_stops_no_question_about_text(cli: Cli, tmp_path: Path) -> None:
    text = {
        "model_type": "llama4_text",
        "hidden_size": 64,
        "intermediate_size": 32,
        "intermediate_size_mlp": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "vocab_size": 320,
    }
    path = directory(tmp_path / "m", {"model_type": "llama4", "text_config": text}, None)
    ran = cli("kvcache", path, "--ctx", 64, "--json")
    assert facts(ran)["kv_bytes"] == 2 * 4 * 2 * 16 * 64 * 2
    said = [n for n in json.loads(ran.out)["notes"] if "vision_config" in n]
    assert said and "vision_config has no hidden_size" in said[0]


def test_a_language_model_that_is_another_than_its_type_says(cli: Cli, tmp_path: Path) -> None:
    # Kimi-K3's language model calls itself kimi_linear and has experts of half the width
    inside = {**LLAMA, "routed_expert_hidden_size": 32}
    raw = {"model_type": "kimi_k3", "text_config": inside, "vision_config": {}}
    ran = cli("params", directory(tmp_path / "m", raw, None))
    assert ran.code == 2 and "routed_expert_hidden_size" in ran.err


# --- what the cache needs, nothing else


@pytest.mark.parametrize(
    "sizes",
    [
        ("--layers", 95, "--d", 8192, "--heads", 64, "--kv-heads", 8),
        ("--layers", 95, "--heads", 64, "--kv-heads", 8, "--head-dim", 128),
        ("--layers", 95, "--kv-heads", 8, "--head-dim", 128),
    ],
)
def test_the_cache_from_its_own_sizes(cli: Cli, sizes: tuple[object, ...]) -> None:
    ran = cli("kvcache", *sizes, "--ctx", 4096, "--json")
    assert facts(ran)["kv_bytes"] == 2 * 95 * 8 * 128 * 4096 * 2


def test_messages_speak_of_flags_where_sizes_came_from_flags(cli: Cli) -> None:
    sizes = ("--layers", 2, "--d", 64, "--heads", 4, "--kv-heads", 2)
    ran = cli("fit", *sizes, "--device", "h100", "--vocab", 100, "--ctx", 8)
    assert ran.code == 2 and "--d-ff is not given" in ran.err and "intermediate_size" not in ran.err
    assert "--head-dim" in cli("kvcache", "--layers", 2, "--kv-heads", 2).err
    assert "do not divide" in cli("kvcache", "--layers", 2, "--d", 64, "--heads", 7).err


def test_a_config_without_what_the_cache_does_not_need(cli: Cli, tmp_path: Path) -> None:
    short = {k: v for k, v in LLAMA.items() if k not in ("vocab_size", "intermediate_size")}
    path = directory(tmp_path / "m", short, None)
    ran = cli("kvcache", path, "--ctx", 128, "--json")
    assert facts(ran)["kv_bytes"] == 2 * 2 * 2 * 16 * 128 * 2
    assert any("does not depend on" in n for n in json.loads(ran.out)["notes"])
    assert cli("params", path).code == 2
    # Jamba's states are as wide as an inner width that follows from the width of the model
    del short["num_hidden_layers"]
    assert cli("kvcache", directory(tmp_path / "n", short, None), "--ctx", 128).code == 2


# --- containers

MISTRAL: dict[str, Any] = {
    "dim": 5120,
    "n_layers": 40,
    "head_dim": 128,
    "hidden_dim": 32768,
    "n_heads": 32,
    "n_kv_heads": 8,
    "rope_theta": 1e9,
    "norm_eps": 1e-5,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}
"""mistralai/Mistral-Small-24B-Instruct-2501's params.json."""


def test_mistral_s_own_config(cli: Cli, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", None, None)
    (path / "params.json").write_text(json.dumps(MISTRAL))
    assert cli("params", path, "--expect", 23_572_403_200).code == 0  # its page's total
    assert cli("params", path / "params.json", "--expect", 23_572_403_200).code == 0
    cache = facts(cli("kvcache", path, "--ctx", 32768, "--json"))
    assert cache["kv_bytes"] == 2 * 40 * 8 * 128 * 32768 * 2  # no window


def test_mistral_s_own_names(cli: Cli, tmp_path: Path) -> None:
    own = {
        "dim": 64,
        "n_layers": 1,
        "head_dim": 16,
        "hidden_dim": 128,
        "n_heads": 4,
        "n_kv_heads": 2,
        "norm_eps": 1e-5,
        "vocab_size": 100,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "tok_embeddings.weight": (100, 64),
        "norm.weight": (64,),
        "output.weight": (100, 64),
        "layers.0.attention_norm.weight": (64,),
        "layers.0.ffn_norm.weight": (64,),
        "layers.0.attention.wq.weight": (64, 64),
        "layers.0.attention.wk.weight": (32, 64),
        "layers.0.attention.wv.weight": (32, 64),
        "layers.0.attention.wo.weight": (64, 64),
        "layers.0.feed_forward.w1.weight": (128, 64),
        "layers.0.feed_forward.w2.weight": (64, 128),
        "layers.0.feed_forward.w3.weight": (128, 64),
    }
    path = directory(tmp_path / "m", None, None)
    (path / "params.json").write_text(json.dumps(own))
    held = {n: np.zeros(s, np.float16) for n, s in shapes.items()}
    save_file(held, path / "consolidated.safetensors")
    ran = cli("check", path)
    assert ran.code == 0, ran.out
    n = sum(t.size for t in held.values())
    assert facts(cli("params", path, "--json"))["total_params"] == n


def test_meta_s_own_config(cli: Cli, tmp_path: Path) -> None:
    # Llama 3.1 8B's params.json; its inner width is a rule
    own = {
        "dim": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 8,
        "vocab_size": 128256,
        "ffn_dim_multiplier": 1.3,
        "multiple_of": 1024,
        "norm_eps": 1e-5,
        "rope_theta": 5e5,
    }
    path = directory(tmp_path / "m", None, None)
    (path / "params.json").write_text(json.dumps(own))
    assert cli("params", path, "--expect", 8_030_261_248).code == 0
    (path / "params.json").write_text(json.dumps({**own, "vocab_size": -1}))
    ran = cli("params", path)
    assert ran.code == 2 and "vocab_size is -1" in ran.err and "hint:" in ran.err


def test_a_pipeline_of_diffusers(cli: Cli, tmp_path: Path) -> None:
    index = {
        "_class_name": "FluxPipeline",
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "text_encoder": ["transformers", "CLIPTextModel"],
    }
    path = directory(tmp_path / "m", None, None)
    (path / "model_index.json").write_text(json.dumps(index))
    lacking = cli("params", path)
    assert lacking.code == 2 and "diffusers pipeline (FluxPipeline)" in lacking.err
    for name, shape in (("transformer", (8, 8)), ("text_encoder", (4, 4))):
        (path / name).mkdir()
        weights = {"a.weight": np.zeros(shape, np.float16)}
        save_file(weights, path / name / "diffusion_pytorch_model.safetensors")
    assert facts(cli("params", path, "--json"))["total_params"] == 64 + 16
    for command in ("kvcache", "trace", "fit"):
        words = ("--device", "h100") if command == "fit" else ()
        ran = cli(command, path, *words)
        assert ran.code == 2 and "do not apply to it" in ran.err.replace("\n", " ")
        assert "--as llama" not in ran.err
    component = {"_class_name": "FluxTransformer2DModel", "num_layers": 8}
    ran = cli("params", directory(tmp_path / "c", component, None))
    assert ran.code == 2 and "component of a diffusers pipeline" in ran.err
    assert "--as llama" not in ran.err


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("pytorch_model.bin", "pickle"),
        ("model.pt", "pickle"),
        ("model.onnx", "ONNX graph"),
        ("weights.npz", "numpy arrays"),
        ("m.nemo", "NeMo archive"),
        ("m.mlpackage", "Core ML"),
    ],
)
def test_what_is_not_read_is_one_clear_line(cli: Cli, tmp_path: Path, name: str, word: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02x")
    for target in (tmp_path / name, tmp_path):
        ran = cli("params", target)
        assert ran.code == 2 and word in ran.err and "hint:" in ran.err
        assert len(ran.err.strip().splitlines()) == 3


def test_pickles_beside_a_config_are_named(cli: Cli, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", LLAMA, None)
    (path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    ran = cli("params", path, "--json")
    assert facts(ran)["total_params"] == N
    assert any("pytorch_model.bin" in n and "not opened" in n for n in json.loads(ran.out)["notes"])


def test_a_stray_file_and_several_models(cli: Cli, tmp_path: Path) -> None:
    path = directory(tmp_path / "m", LLAMA, tensors())
    save_file({"x": np.zeros(3, np.float16)}, path / "old.safetensors")
    ran = cli("params", path, "--json")
    assert facts(ran)["total_params"] == N
    assert any("old.safetensors lies beside" in n for n in json.loads(ran.out)["notes"])
    two = directory(tmp_path / "two", None, None)
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"x": np.zeros(3, np.float16)}, two / name)
    ran = cli("params", two)
    assert ran.code == 2 and "hint: name one file: a.safetensors, b.safetensors" in ran.err


def test_a_shard_is_not_what_the_config_describes(cli: Cli, tmp_path: Path) -> None:
    held = tensors()
    path = directory(tmp_path / "m", LLAMA, None)
    names = sorted(held)
    shards = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for shard, inside in shards.items():
        save_file({n: held[n] for n in inside}, path / shard)
    places = {n: shard for shard, inside in shards.items() for n in inside}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert facts(cli("params", path, "--json"))["total_params"] == N
    one = cli("params", path / "a.safetensors", "--json")
    assert facts(one)["total_params"] == sum(held[n].size for n in names[:5])
    assert any("one of the 2 files" in n for n in json.loads(one.out)["notes"])


def test_a_tensor_in_two_shards_is_the_index_s_to_decide(cli: Cli, tmp_path: Path) -> None:
    held = tensors()
    path = directory(tmp_path / "m", LLAMA, None)
    names = sorted(held)
    save_file({n: held[n] for n in names[:5]}, path / "a.safetensors")
    save_file({n: held[n] for n in names[4:]}, path / "b.safetensors")
    places = {n: "a.safetensors" if n in names[:5] else "b.safetensors" for n in names}
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    ran = cli("params", path, "--json")
    assert facts(ran)["total_params"] == N
    assert any("twice" in n and "the index" in n for n in json.loads(ran.out)["notes"])


def test_metadata_that_is_null_and_tensors_that_end_inside_a_byte(cli: Cli, tmp_path: Path) -> None:
    # safetensors 0.8 reads the one and refuses the other
    def write(header: dict[str, Any], data: bytes) -> Path:
        text = json.dumps(header).encode()
        path = tmp_path / "f.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    plain = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    path = write({"__metadata__": None, "a": plain}, bytes(8))
    assert facts(cli("params", path, "--json"))["total_params"] == 2
    for kind, shape, n in (("F4", [3], 2), ("F6_E2M3", [2], 2)):
        ran = cli(
            "params",
            write({"a": {"dtype": kind, "shape": shape, "data_offsets": [0, n]}}, bytes(n)),
        )
        assert ran.code == 2 and "end inside a byte" in ran.err


# --- multi-token prediction

PREDICTS = {
    "qwen3.5-9b": 9_653_104_368,
    "qwen3.5-27b": 27_781_427_952,
    "qwen3.5-35b-a3b": 35_951_822_704,
    "qwen3.6-27b": 27_781_427_952,
    "mimo-7b": 7_833_409_536,
    "exaone-4.5-33b": 34_350_097_664,
}
"""Totals of the models' pages (safetensors metadata), which count the module too."""


@pytest.mark.parametrize("name", sorted(PREDICTS))
def test_what_a_module_of_multi_token_prediction_holds(cli: Cli, name: str) -> None:
    ran = cli("params", name, "--json")
    said = [n for n in json.loads(ran.out)["notes"] if "multi-token prediction" in n]
    assert len(said) == 1 and "not in the total" in said[0]
    assert facts(cli("params", name, "--with-mtp", "--json"))["total_params"] == PREDICTS[name]
    alone, both = (
        facts(cli("kvcache", name, "--ctx", 1024, "--json", *more))["kv_bytes"]
        for more in ((), ("--with-mtp",))
    )
    assert both > alone


def test_a_module_that_is_not_known_is_named(cli: Cli) -> None:
    ran = cli("params", "minimax-m2.5", "--with-mtp")
    assert ran.code == 2 and "multi-token prediction" in ran.err and "hint:" in ran.err


# --- hints that can be followed


def test_the_hint_of_a_missing_size_works(cli: Cli, tmp_path: Path) -> None:
    lacking = {k: v for k, v in LLAMA.items() if k != "intermediate_size"}
    path = directory(tmp_path / "m", lacking, None)
    ran = cli("params", path)
    assert "`--set d_ff=...`" in ran.err
    assert cli("params", path, "--set", "d_ff=128", "--expect", N).code == 0
    gemma = directory(tmp_path / "g", {"model_type": "gemma4", "text_config": GEMMA4}, None)
    assert cli("params", gemma, "--set", "global_head_dim=256").code == 0
    assert cli("params", gemma, "--set", "global_haed_dim=256").code == 2
