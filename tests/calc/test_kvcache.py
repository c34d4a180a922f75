"""Caches against what engines allocate: worked numbers from running the engines' own code, and
measured ones.

Sources: transformers 5.24.0 run on the CPU; vLLM 0.33.0's planning code (v1/core) executed;
llama.cpp as vendored in llama-cpp-python 0.3.36, built and run without allocation on GGUFs with the
models' real hyper-parameters.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.engines import ENGINES, choose
from llmcalc.engines.cache import Load
from llmcalc.errors import InputError
from llmcalc.families import anatomy, config_for
from llmcalc.formats.element import dtype
from llmcalc.questions.kvcache import largest_batch, largest_context
from llmcalc.sources import resolve
from tests.conftest import Ran
from tests.formulas import evaluate

Cli = Callable[..., Ran]
TINY: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "families" / "tiny.json").read_text()
)
JAMBA = {
    # ai21labs/Jamba-v0.1's config.json
    "model_type": "jamba",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 65536,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "expert_layer_period": 2,
    "expert_layer_offset": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "mamba_dt_rank": 256,
    "tie_word_embeddings": False,
}


def model(name: str) -> Anatomy:
    return anatomy(config_for(JAMBA)) if name == "jamba" else resolve(name).anatomy


def load(context: int, batch: int = 1, kv: str = "bfloat16", **more: Any) -> Load:
    keys, _, values = kv.partition(",")
    k, v = dtype(keys), dtype(values or keys)
    state = more.pop("state_dtype", None)
    ssm = more.pop("ssm_dtype", None)
    if ssm is not None:
        more["ssm_dtype"] = dtype(ssm)
    fallback = k if k.block == 1 and k.size > 1 else dtype("bfloat16")
    return Load(
        context=Dim(context, "context"),
        batch=Dim(batch, "batch"),
        key_dtype=k,
        value_dtype=v,
        state_dtype=dtype(state) if state else fallback,
        **more,
    )


def kv(
    engine: str, name: str, context: int, batch: int = 1, dtype_name: str = "bfloat16", **more: Any
) -> int:
    function = choose(engine).rules.cache
    return int(function(model(name), load(context, batch, dtype_name, **more)).kv_bytes)


@pytest.mark.parametrize(
    ("name", "context", "wanted"),
    [
        ("llama-3-8b", 8192, 1073741824),
        ("gpt3", 2048, 9 * 2**30),
        ("gemma-3-27b", 131072, 11173625856),  # not the 66.6 GB of counting every layer as full
        ("deepseek-v3", 1, 70272),
        ("deepseek-v3", 32768, 2302672896),
        ("gpt-oss-20b", 131072, 3224371200),
        ("qwen3-next-80b-a3b", 65536, 1688469504),
    ],
)
def test_the_plain_formula(name: str, context: int, wanted: int) -> None:
    assert (
        kv("formula", name, context, dtype_name="float16" if name == "gpt3" else "bfloat16")
        == wanted
    )


@pytest.mark.parametrize(
    ("name", "context", "static", "wanted"),
    [
        ("llama-3-8b", 8192, False, 1073741824),
        ("gemma-3-27b", 131072, False, 11173199872),
        ("gemma-3-27b", 131072, True, 11173625856),
        ("deepseek-v3", 32768, False, 2302672896),
        ("gpt-oss-20b", 131072, False, 3224346624),
        ("gpt-oss-20b", 131072, True, 3224371200),
        ("qwen3-next-80b-a3b", 65536, False, 1688469504),
        ("jamba", 65536, False, 1090256896),
    ],
)
def test_transformers(name: str, context: int, static: bool, wanted: int) -> None:
    assert kv("transformers", name, context, static=static) == wanted


def test_transformers_before_latent_caches_were_compressed() -> None:
    assert kv("transformers@4.57", "deepseek-v3", 32768) == 163745628160


@pytest.mark.parametrize(
    ("name", "context", "batch", "dtype_name", "more", "wanted"),
    [
        ("llama-3-8b", 8192, 1, "f16", {}, 1073741824),
        ("llama-3-8b", 8192, 1, "q8_0", {}, 570425344),
        ("llama-3-8b", 8192, 1, "q4_0", {}, 301989888),
        ("llama-3-8b", 8192, 1, "q8_0,f16", {}, 822083584),
        ("gemma-3-27b", 131072, 1, "f16", {}, 11391729664),
        ("gemma-3-27b", 131072, 1, "f16", {"ubatch": 2048}, 12046041088),
        ("gemma-3-27b", 131072 // 4, 4, "f16", {}, 13354663936),
        ("gemma-3-27b", 131072, 4, "f16", {"unified": True}, 12700352512),
        ("gemma-3-27b", 131072, 1, "f16", {"swa_full": True}, 66571993088),
        ("deepseek-v3", 32768, 1, "f16", {}, 2302672896),
        ("deepseek-v3", 32768, 1, "q8_0", {}, 1223294976),
        ("gpt-oss-20b", 131072, 1, "f16", {}, 3240099840),
        ("qwen3-next-80b-a3b", 65536, 1, "f16", {}, 1689649152),
        ("qwen3-next-80b-a3b", 65536 // 4, 4, "f16", {}, 1926758400),
        ("jamba", 65536, 1, "f16", {}, 1091174400),
        ("jamba", 65536 // 4, 4, "f16", {}, 1143472128),
    ],
)
def test_llama_cpp(
    name: str, context: int, batch: int, dtype_name: str, more: dict[str, Any], wanted: int
) -> None:
    assert kv("llama.cpp", name, context, batch, dtype_name, **more) == wanted
    assert kv("ollama", name, context, batch, dtype_name, **more) == wanted


VLLM = [
    # name, context, dtype, settings; groups, bytes per block, blocks per request, bytes per
    # request, blocks in 40 GiB
    ("llama-3-8b", 8192, "bf16", {}, 1, 2097152, 512, 1073741824, 20480),
    ("llama-3-8b", 8192, "fp8", {}, 1, 1048576, 512, 536870912, 40960),
    (
        "gemma-3-27b",
        131072,
        "bf16",
        {"batched_tokens": 2048, "in_flight": 1},
        7,
        1310720,
        9350,
        12255232000,
        32768,
    ),
    ("gemma-3-27b", 131072, "bf16", {}, 7, 1310720, 14726, 19301662720, 32768),
    ("deepseek-v3", 32768, "bf16", {}, 1, 4497408, 512, 2302672896, 9549),
    ("deepseek-v3", 32768, "fp8", {}, 1, 2248704, 512, 1151336448, 19099),
    (
        "gpt-oss-20b",
        131072,
        "bf16",
        {"batched_tokens": 2048, "in_flight": 1},
        2,
        393216,
        8329,
        3275096064,
        109226,
    ),
    ("gpt-oss-20b", 131072, "bf16", {}, 2, 393216, 9225, 3627417600, 109226),
    (
        "qwen3-next-80b-a3b",
        65536,
        "bf16",
        {"prefix_caching": False},
        4,
        13369344,
        124,
        1657798656,
        3212,
    ),
    ("qwen3-next-80b-a3b", 65536, "bf16", {}, 4, 13369344, 127, 1697906688, 3212),
    ("jamba", 65536, "bf16", {"prefix_caching": False}, 8, 1310720, 827, 1083965440, 32768),
    ("jamba", 65536, "bf16", {}, 8, 1310720, 834, 1093140480, 32768),
]


@pytest.mark.parametrize(
    ("name", "context", "kind", "more", "groups", "block", "blocks", "each", "in_40_gib"), VLLM
)
def test_vllm(
    name: str,
    context: int,
    kind: str,
    more: dict[str, Any],
    groups: int,
    block: int,
    blocks: int,
    each: int,
    in_40_gib: int,
) -> None:
    answer = choose("vllm").rules.cache(model(name), load(context, 1, kind, **more))
    assert answer.facts["groups"] == groups and answer.facts["bytes_per_block"] == block
    assert answer.facts["blocks_per_sequence"] == blocks and int(answer.kv_bytes) == each
    assert 40 * 2**30 // block == in_40_gib


def test_vllm_pages_of_a_state_in_float32() -> None:
    answer = choose("vllm").rules.cache(
        model("qwen3-next-80b-a3b"), load(65536, ssm_dtype="float32")
    )
    assert (answer.facts["block_size"], answer.facts["bytes_per_block"], int(answer.kv_bytes)) == (
        1056,
        25952256,
        1790705664,
    )
    answer = choose("vllm").rules.cache(model("jamba"), load(65536, ssm_dtype="float32"))
    assert answer.facts["block_size"] == 144


def test_marginal_and_charged_bytes_are_told_apart(cli: Cli) -> None:
    ran = cli("kvcache", "gpt-oss-120b", "--ctx", 131072, "--engine", "vllm", "--json")
    facts = json.loads(ran.out)["facts"]
    assert facts["kv_bytes_per_token"] == 36864 and facts["pool_bytes_per_token"] == 73728
    assert "73,728" in cli("kvcache", "gpt-oss-120b", "--ctx", 131072, "--engine", "vllm").err


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-3-8b", 131072),
        ("deepseek-v3", 70272),
        ("qwen3-next-80b-a3b", 24576),
        ("jamba", 16384),
    ],
)
def test_sglang_charges_per_token(name: str, per_token: int) -> None:
    answer = choose("sglang").rules.cache(model(name), load(8192))
    assert int(answer.per_token) == per_token


def test_sglang_states_and_windows() -> None:
    answer = choose("sglang").rules.cache(model("qwen3-next-80b-a3b"), load(65536))
    assert int(answer.state_bytes) == 36 * (49152 + 2097152)
    assert int(choose("sglang").rules.cache(model("jamba"), load(65536)).state_bytes) == 28 * (
        49152 + 524288
    )
    # full layers at one token each, windows at 0.8: 24576 + 0.8·24576 per token
    assert kv("sglang", "gpt-oss-20b", 131070) == 131070 * 24576 + 131070 * 4 // 5 * 24576


@pytest.mark.parametrize(
    ("name", "context", "wanted"),
    [
        ("llama-3-8b", 8192, 2**30),
        ("deepseek-v3", 32768, 2302672896),
        ("gemma-3-27b", 131072, 62 * 2**30),
        ("gpt-oss-20b", 131072, 6 * 2**30),
    ],
)
def test_tensorrt_llm(name: str, context: int, wanted: int) -> None:
    assert kv("tensorrt-llm", name, context) == wanted


@pytest.mark.parametrize("name", sorted(n for n in TINY if TINY[n].get("cache")))
def test_measured_caches(name: str) -> None:
    a = anatomy(config_for(TINY[name]["config"]))
    crosses = any(m.kind == "cross" and m.max_source is None for m in a.mixers)
    for point in TINY[name]["cache"]:
        # encoder-decoders were measured with an answer of half the source's length
        tokens = point["seq"] // 2 if crosses else point["seq"]
        asked = load(
            tokens,
            point["batch"],
            "float32",
            source=Dim(point["seq"], "source") if crosses else None,
        )
        assert int(ENGINES["transformers"].newest.cache(a, asked).kv_bytes) == point["bytes"], point


@pytest.mark.parametrize("name", sorted(n for n in TINY if TINY[n].get("decode")))
def test_measured_decode_steps(name: str) -> None:
    entry = TINY[name]["decode"]
    a = anatomy(config_for(TINY[name]["config"]))
    source = (
        Dim(10, "source")
        if any(m.kind == "cross" and m.max_source is None for m in a.mixers)
        else None
    )
    for step, wanted in enumerate(entry["bytes"], 1):
        asked = load(entry["prefill"] + step, entry["batch"], "float32", source=source)
        assert int(ENGINES["transformers"].newest.cache(a, asked).kv_bytes) == wanted, step


@pytest.mark.parametrize("name", sorted(n for n in TINY if TINY[n].get("static")))
def test_measured_static_caches(name: str) -> None:
    entry = TINY[name]["static"]
    a = anatomy(config_for(TINY[name]["config"]))
    asked = load(entry["max_cache_len"], entry["batch"], "float32", static=True)
    if all(m.kind == "none" for m in a.mixers):
        pytest.skip(
            "an encoder: the reference fills a cache that it is handed, and makes none by itself"
        )
    if a.family in ("xlnet",):
        asked = load(
            12, entry["batch"], "float32", static=True
        )  # keeps what it has seen; the measurement saw 12
    assert int(ENGINES["transformers"].newest.cache(a, asked).kv_bytes) == entry["bytes"]


HYBRIDS = (
    "llama-3-8b",
    "gemma-3-27b",
    "deepseek-v3",
    "gpt-oss-20b",
    "qwen3-next-80b-a3b",
    "mistral-7b-v0.1",
    "zamba2-1.2b",
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(HYBRIDS),
    st.sampled_from(sorted(ENGINES)),
    st.integers(1, 300_000),
    st.integers(1, 40),
)
def test_bytes_never_fall_with_context_or_batch(
    name: str, engine: str, context: int, batch: int
) -> None:
    try:
        here = kv(engine, name, context, batch, "float16")
    except InputError:
        return
    assert kv(engine, name, context + 1, batch, "float16") >= here
    assert kv(engine, name, context, batch + 1, "float16") >= here


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(HYBRIDS),
    st.sampled_from(sorted(ENGINES)),
    st.integers(2**20, 2**40),
    st.integers(1, 8),
)
def test_memory_is_the_inverse(name: str, engine: str, memory: int, batch: int) -> None:
    function, a = choose(engine).rules.cache, model(name)
    asked = load(1024, batch, "float16")
    try:
        context = largest_context(a, function, asked, memory)
    except InputError:
        return
    if context:
        assert (
            kv(engine, name, context, batch, "float16")
            <= memory
            < kv(engine, name, context + 1, batch, "float16")
        )
    fits = largest_batch(a, function, asked, memory)
    if fits:
        assert (
            kv(engine, name, 1024, fits, "float16")
            <= memory
            < kv(engine, name, 1024, fits + 1, "float16")
        )


@pytest.mark.parametrize("name", HYBRIDS)
@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_printed_formulas_evaluate(name: str, engine: str) -> None:
    try:
        answer = choose(engine).rules.cache(model(name), load(5000, 3, "float16"))
    except InputError:
        pytest.skip("refused")
    from llmcalc.dims import SYMBOLS

    for value in [
        answer.kv_bytes,
        answer.per_token,
        *(r.kv_bytes for r in answer.rows),
        *(r.state_bytes for r in answer.rows),
    ]:
        sizes = {SYMBOLS.get(n, n): v for n, v in value.sizes.items()}
        assert evaluate(value.formula, sizes) == value, value.formula


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(("llama-3-8b", "llama-3-70b", "deepseek-v3", "qwen3-next-80b-a3b")),
    st.sampled_from((1, 2, 4, 8, 16)),
)
def test_all_ranks_together_hold_at_least_the_whole(name: str, tp: int) -> None:
    whole = kv("formula", name, 4096)
    rank = kv("formula", name, 4096, tp=tp)
    assert rank * tp >= whole and rank <= whole
    if name == "deepseek-v3":
        assert rank == whole  # one latent for all heads: the same on every rank


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    assert kv("vllm", "llama-3-8b", 8192, tp=16) == kv("vllm", "llama-3-8b", 8192, tp=8)


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (["--ctx", "0"], 2, "--ctx"),
        (["--ctx", "1000000000000000000"], 2, "--ctx"),
        (["--ctx", "8192", "--batch", "0"], 2, "--batch"),
        (["--ctx", "8192", "--tp", "3"], 2, "--tp 3"),
        (["--ctx", "8192", "--tp", "0"], 2, "--tp"),
        (["--ctx", "8192", "--engine", "vlm"], 2, "vllm"),
        (["--ctx", "8192", "--engine", "vllm@0.1"], 2, "not known"),
        (["--ctx", "8192", "--engine", "vllm@new"], 2, "version"),
        (["--ctx", "8192", "--kv-dtype", "q9"], 2, "q9"),
        (["--ctx", "8192", "--engine", "llama.cpp", "--kv-dtype", "fp8"], 2, "float8"),
        (
            [
                "--ctx",
                "8192",
                "--engine",
                "llama.cpp",
                "--kv-dtype",
                "f16,q8_0",
                "--no-flash-attention",
            ],
            2,
            "flash attention",
        ),
        (["--ctx", "8192", "--prompt", "5"], 2, "--new"),
        (["--ctx", "8192", "--vs", "nonsense"], 2, "--vs"),
        (["--ctx", "8192", "--memory", "lots"], 2, "lots"),
        (["--ctx", "8192", "--max", "1GiB"], 0, ""),
        (["--ctx", "8192", "--max", "1GB"], 1, "73,741,824 more"),
    ],
)
def test_bad_input_and_limits(cli: Cli, words: list[str], code: int, named: str) -> None:
    ran = cli("kvcache", "llama-3-8b", *words)
    assert ran.code == code and named in ran.err and "Traceback" not in ran.err, ran.err


def test_beyond_the_model_s_own_context_warns_and_computes(cli: Cli) -> None:
    ran = cli("kvcache", "llama-3-8b", "--ctx", 1_000_000)
    assert ran.code == 0 and "beyond the model's own 8,192" in ran.err


def test_the_line_that_must_always_work(cli: Cli) -> None:
    ran = cli("kvcache", "--model", "llama-3-8b", "--ctx", 8192)
    assert (
        ran.code == 0
        and "1,073,741,824" in ran.out
        and "1.00 GiB" in ran.out
        and "131,072" in ran.out
    )
    assert "2·L·n_kv·d_h·T·B·b" in ran.out and "4 times" in ran.out
    facts = json.loads(cli("kvcache", "--model", "llama-3-8b", "--ctx", 8192, "--json").out)[
        "facts"
    ]
    assert (
        facts["kv_bytes"],
        facts["kv_bytes_per_token"],
        facts["state_bytes"],
        facts["tokens_allocated"],
    ) == (
        2**30,
        131072,
        0,
        8192,
    )
    assert facts["mha_bytes"] == 4 * 2**30


def test_rows_tell_growing_layers_from_fixed_ones(cli: Cli) -> None:
    rows = json.loads(cli("kvcache", "qwen3-next-80b-a3b", "--ctx", 65536, "--json").out)["rows"]
    assert [(r["kind"], r["layers"], r["kv_bytes_per_token"] > 0) for r in rows] == [
        ("recurrent", 36, False),
        ("full", 12, True),
    ]


def test_an_encoder_has_no_cache(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY["bert"]["config"]))
    ran = cli("kvcache", tmp_path, "--ctx", 10)
    assert ran.code == 2 and "encoder" in ran.err


def test_a_draft_model_comes_on_top(cli: Cli) -> None:
    both = json.loads(
        cli("kvcache", "llama-3.1-70b", "--ctx", 4096, "--draft", "llama-3.2-1b", "--json").out
    )["facts"]["kv_bytes"]
    assert both == kv("formula", "llama-3.1-70b", 4096) + kv("formula", "llama-3.2-1b", 4096)


def test_memory_gives_context_batch_and_a_grid(cli: Cli) -> None:
    facts = json.loads(
        cli("kvcache", "llama-3-8b", "--ctx", 8192, "--memory", "8GiB", "--json").out
    )["facts"]
    assert (facts["max_context"], facts["max_batch"]) == (65536, 8)
    last = [(c["batch"], c["fits"]) for c in facts["grid"] if c["context"] == 8192]
    assert last == [
        (1, True),
        (2, True),
        (4, True),
        (8, True),
        (16, False),
        (32, False),
        (64, False),
    ]
    endless = json.loads(
        cli("kvcache", "mamba-130m", "--ctx", 8192, "--memory", "8GiB", "--json").out
    )["facts"]
    assert endless["max_context"] is None
