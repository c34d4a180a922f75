"""``llmcalc fit``: the verdict, its exit code, and that what it says would fit does fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcalc.anatomy import Anatomy
from llmcalc.devices import find, names
from llmcalc.parallel import partition, stage
from llmcalc.questions.params import parameters
from llmcalc.sources import resolve
from tests.conftest import Ran

Cli = Callable[..., Ran]
GIB = 2**30


def asked(cli: Cli, *args: object) -> tuple[int, dict[str, Any]]:
    ran = cli("fit", *args, "--json")
    assert ran.code in (0, 1), ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return ran.code, found


def bytes_of(found: dict[str, Any], part: str) -> int:
    return next(int(r["bytes"]) for r in found["rows"] if r["part"] == part)


def test_the_question_of_every_deployment(cli: Cli) -> None:
    """Llama 3.1 70B in bf16: 70,553,706,496 parameters (its config on the meta device), cut in four
    but for norms.
    """
    question = ("--model", "llama-3.1-70b", "--device", "h100", "--ctx", 32768, "--engine", "vllm")
    code, found = asked(cli, *question, "--count", 4, "--concurrency", 64)
    assert code == 1 and found["facts"]["verdict"] == "no"
    quarter = 70553706496 * 2 // 4
    assert quarter < bytes_of(found, "weights") < quarter + GIB // 16
    assert bytes_of(found, "cache") == 64 * 32768 * 80 * 2 * 2 * 128 * 2
    code, found = asked(
        cli, *question, "--count", 4, "--concurrency", found["facts"]["max_sequences"]
    )
    assert code == 0 and found["facts"]["fits"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm", "transformers", "formula"])
def test_what_it_says_fits_does_and_one_more_does_not(cli: Cli, engine: str) -> None:
    question = ("llama-3-8b", "--device", "l40s", "--engine", engine)
    _, found = asked(cli, *question, "--ctx", 4096, "--concurrency", 2)
    context, most = found["facts"]["max_context"], found["facts"]["max_sequences"]
    assert context > 4096 and most > 2
    assert asked(cli, *question, "--ctx", context, "--concurrency", 2)[0] == 0
    assert asked(cli, *question, "--ctx", context + 64, "--concurrency", 2)[0] == 1
    assert asked(cli, *question, "--ctx", 4096, "--concurrency", most)[0] == 0
    assert asked(cli, *question, "--ctx", 4096, "--concurrency", most + 1)[0] == 1


def test_the_fewest_devices_fit(cli: Cli) -> None:
    question = ("llama-3.1-70b", "--device", "h100", "--ctx", 8192, "--engine", "vllm")
    code, found = asked(cli, *question, "--count", 1)
    fewest = found["facts"]["min_count"]
    # 141 GB of weights: logs of a 72B model on two H100s show 3.04 GiB of pool, too close to call
    assert code == 1 and fewest == 4
    assert asked(cli, *question, "--count", fewest)[0] == 0
    assert asked(cli, *question, "--count", fewest // 2)[0] == 1


def test_narrower_formats_are_named_with_what_they_leave(cli: Cli) -> None:
    code, found = asked(cli, "llama-3-8b", "--device-memory", "16GiB", "--ctx", 8192)
    ways = {w["value"]: w["left_bytes"] for w in found["facts"]["ways"] if w["change"] == "format"}
    assert code == 1 and ways["weights in 4 bits (awq)"] > ways["weights in fp8"] > 0
    assert (
        asked(cli, "llama-3-8b", "--device-memory", "16GiB", "--ctx", 8192, "--weights", "awq")[0]
        == 0
    )


def test_pipeline_stages_hold_the_model_once() -> None:
    """vLLM's get_pp_indices gives a remainder to the stages before the last; together they hold
    every parameter.
    """
    assert [len(r) for r in partition(61, 4)] == [15, 15, 16, 15] and [
        len(r) for r in partition(7, 3)
    ] == [2, 3, 2]
    for name in ("llama-3-8b", "deepseek-v3", "gpt-oss-20b", "qwen3-next-80b-a3b"):
        whole = resolve(name).anatomy
        parts = [stage(whole, 3, i) for i in range(3)]
        assert sum(int(parameters(p)) for p in parts) == int(parameters(whole)), name
        layers = [sum(len(m.layers.indices) for m in p.mixers) for p in (whole, *parts)]
        assert layers[0] == sum(layers[1:]), name


def test_a_tied_head_is_on_both_ends() -> None:
    whole: Anatomy = resolve("llama-3.2-1b").anatomy
    held = sum(int(parameters(stage(whole, 2, i))) for i in range(2))
    assert held == 1235814400 + 128256 * 2048  # the published count, and the table once more


def test_two_stages_fit_where_one_does_not(cli: Cli) -> None:
    question = (
        "llama-3.1-70b",
        "--device",
        "h100",
        "--ctx",
        8192,
        "--engine",
        "vllm",
        "--count",
        4,
    )
    code, found = asked(cli, *question, "--pp", 2)
    assert code == 0 and "of 2 ranks" in found["rows"][0]["why"]


def test_llama_cpp_offloads_what_fits(cli: Cli) -> None:
    question = ("llama-3-8b", "--engine", "llama.cpp", "--ctx", 8192, "--weights", "q8_0")
    code, found = asked(cli, *question, "--device-memory", "6GiB")
    facts = found["facts"]
    layers = facts["max_gpu_layers"]
    assert code == 1 and 0 < layers < 32 and facts["device_bytes"] <= 6 * GIB
    assert asked(cli, *question, "--device-memory", "6GiB", "--gpu-layers", layers)[0] == 0
    assert asked(cli, *question, "--device-memory", "6GiB", "--gpu-layers", layers + 1)[0] == 1
    assert (
        found["rows"][0]["why"] == f"{layers - 1} of 32 layers and the output"
    )  # i_gpu_start = n_layer + 1 - ngl
    held = sum(r["bytes"] for r in found["rows"] if r["part"].startswith("weights"))
    assert held == 8_532_934_656  # llama-quantize --dry-run: 8137.64 MiB, norms in float32


@pytest.mark.parametrize("count", [1, 2])
def test_gguf_file_types(cli: Cli, count: int) -> None:
    """llama-quantize --dry-run, Llama-3-8B as Q4_K_M: 4,912,898,048 bytes of tensors; two devices
    share its layers.
    """
    words = (
        "llama-3-8b",
        "--engine",
        "llama.cpp",
        "--ctx",
        8192,
        "--weights",
        "q4_k_m",
        "--device",
        "h100",
    )
    code, found = asked(cli, *words, "--count", count)
    assert code == 0
    held = [r for r in found["rows"] if r["part"].startswith("weights")]
    n_bytes = sum(r["bytes"] for r in held)  # of the fullest of two
    assert (
        n_bytes == 4_912_898_048
        if count == 1
        else 4_912_898_048 / 2 <= n_bytes < 0.55 * 4_912_898_048
    )
    other = cli(
        "fit", "deepseek-v3.2", "--engine", "llama.cpp", "--weights", "q4_k_m", "--device", "h100"
    )
    assert other.code == 2 and "not described" in other.err


@settings(max_examples=20, deadline=None)
@given(layers=st.integers(1, 200), stages=st.integers(1, 64))
def test_stages_cover_every_layer_once(layers: int, stages: int) -> None:
    if stages > layers:
        return
    parts = partition(layers, stages)
    assert [i for part in parts for i in part] == list(range(layers))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_devices_are_many_and_every_one_says_where_its_figures_come_from() -> None:
    assert len(names()) >= 40 and any(n.startswith("m3") for n in names())
    for name in names():
        device = find(name)
        assert device.source and device.memory_bytes >= device.visible_bytes > 0, name
    assert find("H100 SXM").name == "h100" and find("a100").memory_bytes == 80 * GIB


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("llama-3-8b",), "on what?"),
        (("llama-3-8b", "--device", "h1000"), "h1000"),
        (("llama-3-8b", "--device", "h100", "--device-memory", "8GiB"), "twice"),
        (("llama-3-8b", "--device-memory", "24"), "less than a MiB"),
        (("llama-3-8b", "--device", "h100", "--count", 0), "--count"),
        (("llama-3-8b", "--device", "h100", "--count", 3), "does not divide 32 heads"),
        (("llama-3-8b", "--device", "h100", "--count", 4, "--pp", 3), "--pp 3"),
        (("llama-3-8b", "--device", "h100", "--utilization", 1.5), "--utilization"),
        (("llama-3-8b", "--device", "h100", "--weights", "int3"), "int3"),
        (
            ("llama-3-8b", "--device", "h100", "--gpu-layers", 3),
            "--gpu-layers is a setting of llama.cpp",
        ),
        (("llama-3-8b", "--device", "h100", "--concurrency", 0), "--concurrency is 0"),
        (("llama-3-8b", "--device", "h100", "--pp", 0), "--pp is 0"),
        (("llama-3-8b", "--device", "h100", "--max-seqs", 8), "--max-seqs is a setting of vllm"),
        (("bert-base", "--device", "h100"), "keeps nothing between tokens"),
        (("phi-4", "--device", "h100", "--count", 4), "10 key/value heads"),
        (
            (
                "llama-3-8b",
                "--device",
                "h100",
                "--engine",
                "llama.cpp",
                "--count",
                2,
                "--gpu-layers",
                3,
            ),
            "one device",
        ),
        (("--d", 768, "--layers", 12, "--device", "h100", "--ctx", 128), "no vocabulary"),
    ],
)
def test_wrong_questions_are_one_line(cli: Cli, args: tuple[object, ...], word: str) -> None:
    ran = cli("fit", *args)
    assert ran.code == 2 and ran.out == ""
    assert ran.err.startswith("error: ") and word in ran.err.splitlines()[0]


def test_auto_takes_this_machine(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As nvidia-smi lists two cards, or, where there is none, the main memory."""
    monkeypatch.setenv("PATH", str(tmp_path))
    alone = asked(cli, "gpt2", "--device", "auto", "--engine", "transformers")[1]
    assert alone["facts"]["device_memory_bytes"] > GIB // 4
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'NVIDIA L4, 23034'\necho 'NVIDIA L4, 23034'\n")
    fake.chmod(0o755)
    found = asked(cli, "gpt2", "--device", "auto", "--engine", "vllm")[1]
    assert found["facts"]["visible_bytes"] == 23034 * 2**20 and "2 ranks" in found["rows"][0]["why"]


def test_published_formats_are_the_default(cli: Cli) -> None:
    """gpt-oss-120b is published in MXFP4: 65,248,815,744 bytes of tensors (the sum of its three
    shards' headers).
    """
    found = asked(
        cli, "gpt-oss-120b", "--device", "h100", "--ctx", 8192, "--engine", "transformers"
    )[1]
    assert found["facts"]["weights"] == "mxfp4" and bytes_of(found, "weights") == 65248815744
    wide = asked(cli, "gpt-oss-120b", "--device", "h100", "--ctx", 8192, "--weights", "bf16")
    assert wide[0] == 1 and bytes_of(wide[1], "weights") == 2 * 116829156672


def test_a_checkpoint_counts_as_stored_on_every_rank(cli: Cli, tmp_path: Path) -> None:
    """Norms are on both ranks; every matrix is cut in two, those in fp8 and those in bfloat16."""
    import json as js

    import torch
    from safetensors.torch import save_file

    d, ff, v, kv = 256, 512, 1024, 128
    config = {
        "model_type": "llama",
        "hidden_size": d,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
    }
    config |= {
        "num_key_value_heads": 2,
        "intermediate_size": ff,
        "vocab_size": v,
        "max_position_embeddings": 512,
    }
    config |= {"tie_word_embeddings": False, "torch_dtype": "bfloat16", "head_dim": 64}
    p = "model.layers.0."
    shapes = {
        p + "self_attn.q_proj": (d, d),
        p + "self_attn.k_proj": (kv, d),
        p + "self_attn.v_proj": (kv, d),
    }
    shapes |= {
        p + "self_attn.o_proj": (d, d),
        p + "mlp.gate_proj": (ff, d),
        p + "mlp.up_proj": (ff, d),
    }
    shapes |= {p + "mlp.down_proj": (d, ff)}
    tensors = {n + ".weight": torch.zeros(s, dtype=torch.float8_e4m3fn) for n, s in shapes.items()}
    wide = {"model.embed_tokens": (v, d), "lm_head": (v, d)}
    tensors |= {n + ".weight": torch.zeros(s, dtype=torch.bfloat16) for n, s in wide.items()}
    norms = ("model.norm", p + "input_layernorm", p + "post_attention_layernorm")
    tensors |= {n + ".weight": torch.zeros(d, dtype=torch.bfloat16) for n in norms}
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(js.dumps(config))
    matrices = sum(a * b for a, b in shapes.values()) + 2 * v * d * 2
    question = (tmp_path, "--device-memory", "8GiB", "--ctx", 512, "--engine", "transformers")
    one, two = (bytes_of(asked(cli, *question, "--count", n)[1], "weights") for n in (1, 2))
    assert one == matrices + 3 * d * 2 and two == matrices // 2 + 3 * d * 2


def test_llama_cpp_divides_layers_among_devices(cli: Cli) -> None:
    found = asked(
        cli, "llama-3-8b", "--device", "h100", "--engine", "llama.cpp", "--count", 2, "--ctx", 8192
    )[1]
    assert (found["facts"]["tp"], found["facts"]["pp"]) == (1, 2)
    assert bytes_of(found, "cache") == 2**29  # half of 1 GiB


def test_tensorrt_takes_its_fraction_of_what_is_left(cli: Cli) -> None:
    """free_gpu_memory_fraction is one of the memory that is free once weights and buffers are
    there.
    """
    found = asked(
        cli, "llama-3-8b", "--device", "rtx-4090", "--ctx", 8192, "--engine", "tensorrt-llm"
    )[1]
    facts = found["facts"]
    left = facts["visible_bytes"] - bytes_of(found, "weights") - bytes_of(found, "reserve")
    assert facts["pool_bytes"] == int(0.9 * left)


def test_beyond_the_models_own_context_is_said(cli: Cli) -> None:
    ran = cli("fit", "llama-3-8b", "--device", "h100", "--ctx", 200000, "--engine", "vllm")
    assert "beyond the model's own 8,192" in ran.err and "beyond the model's own 8,192" in ran.out


def test_a_model_of_states_alone_has_no_longest_context(cli: Cli) -> None:
    found = asked(cli, "mamba-130m", "--device", "h100", "--ctx", 8192)[1]
    assert found["facts"]["max_context"] is None
    assert "without limit" in cli("fit", "mamba-130m", "--device", "h100", "--ctx", 8192).out


def test_sizes_may_have_a_part_of_a_byte(cli: Cli) -> None:
    found = asked(cli, "gpt2", "--device-memory", "79.19GiB")[1]
    assert found["facts"]["device_memory_bytes"] == int(79.19 * GIB)


def test_explain_shows_the_formula_of_weights_and_cache(cli: Cli) -> None:
    out = cli("fit", "llama-3-8b", "--device", "h100", "--ctx", 8192, "--explain").out
    assert "weights = " in out and "cache = " in out and "= 1,073,741,824" in out


@pytest.mark.parametrize(
    ("spelling", "engine"),
    [
        ("VLLM", "vllm"),
        ("trtllm", "tensorrt-llm"),
        ("TensorRT-LLM", "tensorrt-llm"),
        ("llamacpp", "llama.cpp"),
    ],
)
def test_an_engine_is_the_same_by_any_of_its_names(cli: Cli, spelling: str, engine: str) -> None:
    """Every rule looks at the engine itself: its share of the memory, its working memory, its
    rotary table.
    """
    question = ("llama-3-8b", "--device", "h100", "--ctx", 8192, "--engine")
    one, other = (asked(cli, *question, name)[1] for name in (spelling, engine))
    one["facts"]["engine"] = engine
    assert one == other


def test_graphs_are_counted_since_vllm_0_20(cli: Cli) -> None:
    """Releases 0.19 and 0.20: CUDA graphs come out of the pool, and the default share rises from
    0.9 to 0.92.
    """
    for version, share in (("0.19", 0.9), ("0.20", 0.92), ("0.33", 0.92)):
        found = asked(
            cli, "llama-3-8b", "--device", "h100", "--ctx", 8192, "--engine", f"vllm@{version}"
        )[1]
        assert found["facts"]["utilization"] == share
        assert any(r["part"] == "CUDA graphs" for r in found["rows"]) == (share == 0.92)


def test_llama_cpp_does_not_hold_a_safetensors_file_as_stored(cli: Cli, tmp_path: Path) -> None:
    """It reads a conversion to GGUF: the size of the file says nothing of it."""
    import torch
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(4)}, tmp_path / "model.safetensors")
    config = {
        "model_type": "gpt2",
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 100,
        "n_positions": 32,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    question = (tmp_path, "--device-memory", "4GiB", "--ctx", 32, "--engine", "llama.cpp")
    assert asked(cli, *question)[1]["facts"]["weights"] == "bfloat16"


def test_every_degree_has_its_numbers(cli: Cli) -> None:
    """Mixtral-8x7B in bf16: 46,702,792,704 parameters, of which 45,097,156,608 are in experts."""
    facts = json.loads(
        cli(
            "fit", "mixtral-8x7b", "--device", "h100", "--count", "2", "--ctx", "4096", "--json"
        ).out
    )["facts"]
    total, experts = 46_702_792_704, 32 * 8 * 3 * 4096 * 14336
    by = facts["degree_bytes"]
    assert by["expert"]["1"] == by["tensor"]["1"] == by["pipeline"]["1"] == 2 * total
    assert by["expert"]["4"] == 2 * (total - experts + experts // 4)
    assert facts["degrees"]["expert"] == [1, 2, 4, 8]
    assert sum(by["pipeline"][p] * int(p) for p in ("2",)) >= 2 * total


def test_auto_asks_torch_where_the_driver_s_tool_is_not_there(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(
        "llmcalc.live.device.accelerators", lambda: [("AMD Instinct MI300X", 192 * 2**30)] * 2
    )
    facts = json.loads(cli("fit", "llama-3-8b", "--device", "auto", "--ctx", "4096", "--json").out)[
        "facts"
    ]
    assert facts["fits"] and facts["count"] == 2


@pytest.mark.parametrize(
    ("words", "weights", "pool"),
    [
        # SGLang 0.5 start-up logs, public: "Load weight end ... mem usage", K and V sizes
        (("qwen2.5-1.5b", "--device", "l40s", "--utilization", 0.85), "3.03GiB", 34.38),
        (("gemma-4-12b", "--device", "gb10", "--utilization", 0.72), "24.35GiB", 55.86),
        (
            ("gemma-4-31b", "--device", "rtx-3090", "--count", 2, "--utilization", 0.85),
            "11.07GiB",
            8.32,
        ),
        (
            ("gemma-4-31b", "--device", "rtx-3090", "--count", 2, "--utilization", 0.92),
            "11.07GiB",
            9.92,
        ),
    ],
)
def test_sglang_takes_its_fraction_of_what_was_free(
    cli: Cli, words: tuple[object, ...], weights: str, pool: float
) -> None:
    asking = (*words, "--engine", "sglang", "--ctx", 4096, "--weights-measured", weights)
    facts = asked(cli, *asking)[1]["facts"]
    slack = 0.015 * GIB  # three prints of hundredths
    assert facts["pool_low_bytes"] - slack <= pool * GIB <= facts["pool_high_bytes"] + slack


def test_measured_values_carry_through(cli: Cli) -> None:
    """A pool that a log prints gives its tokens: bytes over 2·L·n_kv·d_h·b."""
    question = ("llama-3-8b", "--device", "a100-80gb", "--ctx", 8192, "--engine", "vllm@0.18")
    measured = ("--weights-measured", "14.99GiB", "--pool-measured", "8GiB")
    facts = asked(cli, *question, *measured)[1]["facts"]
    assert facts["pool_low_bytes"] == facts["pool_high_bytes"] == facts["pool_bytes"] == 2**33
    assert facts["pool_tokens"] == 2**33 // (32 * 2 * 8 * 128 * 2)
    ran = cli("fit", *question, "--pool-measured", "70GiB")
    assert ran.code == 2 and "more than what is usable" in ran.err


def test_others_on_the_device(cli: Cli) -> None:
    """vLLM wants its whole share free ("Free memory on device ... is less than desired GPU memory
    utilization"); llama.cpp takes what is left.
    """
    question = ("llama-3-8b", "--device", "l40s", "--ctx", 8192)
    code, found = asked(cli, *question, "--engine", "vllm", "--used", "8GiB")
    assert code == 1 and found["facts"]["verdict"] == "no"
    assert any("does not start" in note for note in found["notes"])
    lower = ("--engine", "vllm", "--used", "8GiB", "--utilization", 0.8)
    assert asked(cli, *question, *lower)[0] == 0
    alone, beside = (
        asked(cli, *question, "--engine", "llama.cpp", *more)[1]["facts"]["usable_bytes"]
        for more in ((), ("--used", "8GiB"))
    )
    assert alone - beside == 2**33
    assert cli("fit", *question, "--used", "99GiB").code == 2


def test_what_stays_must_go_into_main_memory(cli: Cli) -> None:
    """48.5 GB of layers do not go into 32 GB (an out-of-memory that a user reported)."""
    question = ("qwen3-next-80b-a3b", "--engine", "llama.cpp", "--weights", "q4_k_m")
    asking = (*question, "--device-memory", "8GiB", "--gpu-layers", 0, "--ctx", 32768)
    code, found = asked(cli, *asking, "--host-memory", "32GB")
    assert code == 1 and found["facts"]["verdict"] == "no"
    assert found["facts"]["host_bytes"] > found["facts"]["host_memory_bytes"] == 32 * 10**9
    assert asked(cli, *asking, "--host-memory", "64GB")[0] == 0
    two = cli("fit", *question, "--device", "h100", "--count", 2, "--host-memory", "32GB")
    assert two.code == 2 and "--host-memory is for one device" in two.err
    ran = cli("fit", "gpt2", "--engine", "vllm", "--device", "h100", "--host-memory", "32GB")
    assert ran.code == 2 and "llama.cpp" in ran.err
