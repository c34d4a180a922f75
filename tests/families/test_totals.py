"""Golden totals, every one from outside, with its source beside it.

totals.json has those of the presets; published.json those of families that the reference
implementation does not ship, with the config that each belongs to.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from llmcalc.families import anatomy, config_for
from llmcalc.questions.params import (
    active,
    active_without_embedding,
    buffers,
    n_tensors,
    parameters,
    stored,
)
from llmcalc.sources import presets, resolve

TOTALS = json.loads((Path(__file__).parent / "totals.json").read_text())
PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text())


@pytest.mark.parametrize("name", sorted(TOTALS))
def test_total(name: str) -> None:
    assert parameters(resolve(name).anatomy) == TOTALS[name]["total"], TOTALS[name]["source"]


@pytest.mark.parametrize("name", sorted(PUBLISHED))
def test_published_total(name: str) -> None:
    case = PUBLISHED[name]
    assert parameters(anatomy(config_for(case["config"]))) == case["total"], case["source"]


def test_every_preset_has_a_golden_total_and_names_its_source() -> None:
    assert set(presets.names()) == set(TOTALS)
    assert len(TOTALS) >= 400
    assert all(presets.load(name)["_source"] for name in TOTALS)


def test_gpt2_has_148_tensors_as_published_and_llama_3_8b_291() -> None:
    # openai-community/gpt2 without its masks; meta-llama/Meta-Llama-3-8B's index
    assert n_tensors(resolve("gpt2").anatomy) == 148
    assert n_tensors(resolve("llama-3-8b").anatomy) == 291


def test_deepseek_v3_by_every_convention() -> None:
    # arXiv 2412.19437: 671B and 37B; the 14,848 correction biases are stored and are buffers in
    # transformers
    a = resolve("deepseek-v3").anatomy
    assert (int(parameters(a)), int(buffers(a)), int(stored(a))) == (
        671026404352,
        14848,
        671026419200,
    )
    assert int(active(a)) == 37552282624
    assert int(active_without_embedding(a)) == 37552282624 - 129280 * 7168


@pytest.mark.parametrize(
    ("name", "with_embedding", "without"),
    # gpt-oss model card, table 1: 3.61B and 5.13B active, without the input embedding
    [("gpt-oss-20b", "4.19", "3.61"), ("gpt-oss-120b", "5.71", "5.13")],
)
def test_gpt_oss_active(name: str, with_embedding: str, without: str) -> None:
    a = resolve(name).anatomy
    assert (f"{active(a) / 1e9:.2f}", f"{active_without_embedding(a) / 1e9:.2f}") == (
        with_embedding,
        without,
    )


def llama(**sizes: object) -> dict[str, object]:
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes}


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        # karpathy/llama2.c#378: tied heads make the models smaller than their state dicts
        ((288, 6, 6, 768, True), 15191712),
        ((512, 8, 8, 1376, True), 41689600),
        ((768, 12, 12, 2048, True), 109529856),
        # TransformerLensOrg/TransformerLens#448: SwiGLU has three matrices
        ((4096, 32, 32, 11008, False), 6738415616),
    ],
)
def test_models_that_other_tools_counted_wrong(
    sizes: tuple[int, int, int, int, bool], total: int
) -> None:
    d, layers, heads, d_ff, tied = sizes
    raw = llama(
        hidden_size=d,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=d_ff,
        vocab_size=32000,
        tie_word_embeddings=tied,
    )
    assert parameters(anatomy(config_for(raw))) == total


def test_openelm_is_never_counted_from_its_first_layer() -> None:
    # lablup/mlxcel#1034: OpenELM-270M, 271,527,168 parameters, 16,128 bytes of cache per token in
    # bf16
    raw = PUBLISHED["apple/OpenELM-270M"]["config"]
    a = anatomy(config_for(raw))
    assert parameters(a) == 271527168
    assert sum(len(m.layers.indices) * m.per_token * 2 for m in a.mixers) == 16128
