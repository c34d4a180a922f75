"""What quantisers store, against the files that they wrote and the sizes that were published."""

from __future__ import annotations

import pytest

from llmcalc.api import load
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype
from llmcalc.formats.scheme import SCHEMES
from llmcalc.formats.stored import Plain, Stored, named, stored


def tensors(name: str, form: str) -> tuple[Stored, ...]:
    return stored(load(name).anatomy, named(form, dtype("bfloat16")))


N = 4096 * 4096

MEASURED = {
    "gptq": 4.1640625,  # GPTQModel's layout: 4 + 20/128 + 32/4096
    "awq": 4.15625,  # AutoAWQ's gemm layout: 4 + 20/128
    "nf4": 4.5 + 8 * 64 / N,  # bitsandbytes 0.50.2, blocks of 64, and a table of 16 float32
    "nf4_double": (
        8 * (8656107 - 171) / N
    ),  # bitsandbytes 0.50.2 wrote 8,656,107 bytes, 171 of them its JSON state
    "llm_int8": 8 + 32 / 4096,  # bitsandbytes LLM.int8: SCB
    "w4a16": 4.125 + 128 / N,  # compressed-tensors 0.20.1: packed, scale, shape
    "w8a8": 8 + 16 / 4096,  # compressed-tensors INT8
    "fp8": 8 + 16 / 4096,  # compressed-tensors FP8_DYNAMIC
    "fp8_block": 8 + 32 / 16384,  # DeepSeek-V3's weight_scale_inv
    "mxfp8": 8.25,  # OCP Microscaling Formats v1.0
    "mxfp6": 6.25,
    "mxfp4": 4.25,
    "nvfp4": 4.5 + 32 / N,  # NVFP4: e4m3 per 16, float32 per tensor
    "hqq4": 4.5,
    "mlx4": 4.5,
    "mlx8": 8.5,
}


@pytest.mark.parametrize("name", SCHEMES)
def test_bits_of_one_matrix(name: str) -> None:
    assert 8 * int(SCHEMES[name].n_bytes(4096, 4096)) / N == MEASURED[name]


def test_gptq_pads_the_last_group() -> None:
    """in = 200 is two groups of 128, and 25 words of 8 codes; out = 64."""
    assert {
        k: int(p.n_bytes)
        for k, p in SCHEMES["gptq"].pieces(Dim(200), Dim(64), SCHEMES["gptq"].packing).items()
    } == {
        "qweight": 25 * 64 * 4,
        "qzeros": 2 * 8 * 4,
        "scales": 2 * 64 * 2,
        "g_idx": 800,
    }


def test_gpt_oss_checkpoint() -> None:
    """The tensors of openai/gpt-oss-120b: 65,248,815,744 bytes (its safetensors index)."""
    found = tensors("gpt-oss-120b", "mxfp4")
    assert sum(t.n_bytes for t in found) == 65_248_815_744
    assert {t.role for t in found if t.form == "mxfp4"} == {"mlp.gate_up", "mlp.down"}


def test_seventy_billion_in_one_dtype() -> None:
    """Llama-3.1-70B has 70,553,706,496 parameters; the planners' 141,107,412,992 bytes
    in 16 bits.
    """
    found = load("llama-3.1-70b").anatomy
    kinds = ("float32", "bfloat16", "int8", "int4")
    sizes = {k: sum(t.n_bytes for t in stored(found, Plain(wide=dtype(k)))) for k in kinds}
    assert sizes["bfloat16"] == 141_107_412_992
    assert [sizes["float32"], sizes["int8"], 2 * sizes["int4"]] == [
        2 * sizes["bfloat16"],
        70_553_706_496,
        70_553_706_496,
    ]


def test_what_stays_wide() -> None:
    by_role = {t.role: t.form for t in tensors("mixtral-8x7b", "awq")}
    assert (
        by_role["router"]
        == by_role["embed.token"]
        == by_role["head"]
        == by_role["norm"]
        == "bfloat16"
    )
    assert by_role["mlp.down"] == by_role["attn.q"] == "awq"
    mlx = {t.role: t.form for t in tensors("mixtral-8x7b", "mlx4")}
    assert mlx["embed.token"] == mlx["head"] == "mlx4"


@pytest.mark.parametrize("name", SCHEMES)
def test_elements_are_the_models(name: str) -> None:
    for model in ("gpt2", "qwen3-30b-a3b", "deepseek-v3"):
        packed, plain = tensors(model, name), tensors(model, "bf16")
        assert sum(t.elements for t in packed) == sum(t.elements for t in plain)


def test_names_that_are_no_models_format() -> None:
    with pytest.raises(InputError, match="format of tensors"):
        tensors("gpt2", "q4_k")
    with pytest.raises(InputError, match="no weight format"):
        tensors("gpt2", "q4_k_xl")
