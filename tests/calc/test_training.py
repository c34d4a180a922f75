"""What training takes, against the papers' tables, what others measured, and what torch really
allocates.

data/training_reports.jsonl: public peaks of training and inference with their settings.
LLMCALC_TRAINING_REPORTS names another file of the same form.
"""

from __future__ import annotations

import json
import os
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.engines.cache import Load
from llmcalc.engines.formula import formula
from llmcalc.errors import InputError
from llmcalc.families import anatomy, config_for
from llmcalc.formats.element import dtype
from llmcalc.questions.activations import Widths, kept_per_token, megatron_layer
from llmcalc.questions.communication import traffic
from llmcalc.questions.params import parameters
from llmcalc.questions.recipe import OPTIMIZERS, PROFILES, Recipe
from llmcalc.questions.speed import weight_reads
from llmcalc.questions.training import Training, adapters, train, zero_bytes
from llmcalc.sources import resolve
from tests.calc.forms import of_bytes
from tests.calc.test_speed import model_of

RECORDS: list[dict[str, Any]] = [
    json.loads(line)
    for line in (
        Path(
            os.environ.get("LLMCALC_TRAINING_REPORTS")
            or Path(__file__).parent / "data" / "training_reports.jsonl"
        )
        .read_text()
        .splitlines()
    )
]
PACKED = {"bnb.nf4": Fraction(9, 16), "bnb.nf4-dq": Fraction("0.51587")}
TARGETS = {"query": "q", "key": "k", "value": "v", "projection": "o"}


def model(record: dict[str, Any]) -> Anatomy:
    return model_of(record["config"])


def embedding(found: Anatomy) -> int:
    return sum(int(w.params) for w in found.weights if w.role == "embed.token")


def lora(settings: dict[str, Any]) -> dict[str, Any]:
    rank = settings.get("lora_rank") or 0
    targets = settings.get("lora_targets") or (["q", "k", "v", "o"] if rank else [])
    return {"lora_rank": rank, "lora_targets": tuple(TARGETS.get(t, t) for t in targets)}


def careful(record: dict[str, Any]) -> Training:
    """A record with every setting stated: the moments of a Hugging Face training step."""
    s = record["settings"]
    recipe = Recipe(
        like={"amp": "accelerate", "pure": "bf16", "bf16": "bf16", "fp32": "fp32"}[s["precision"]],
        tokens=s["seq_len"],
        micro_batch=s["micro_batch"],
        keep_grads=not s["zero_grad_set_to_none"],
        recompute="full" if s["gradient_checkpointing"] else "none",
        eager=s["attention"] == "eager",
        **lora(s),
    )
    return train(recipe, model(record))


def titan(record: dict[str, Any], ranks: int | None = None) -> Training:
    """torchtitan: float32 states over the sharding group, two gathered layers, its own
    recomputation.
    """
    s = record["settings"]
    recompute: Any = (
        "full" if "full" in str(s.get("activation_checkpointing", "selective")) else "selective"
    )
    group = ranks or int(s.get("fsdp") or s["gpus"])
    recipe = Recipe(
        like="torchtitan",
        tokens=s["seq_len"],
        micro_batch=s.get("local_batch") or 1,
        zero=3,
        dp=group,
        cp=s.get("cp") or 1,
        tp=s.get("tp") or 1,
        pp=s.get("pp") or 1,
        recompute=recompute,
    )
    return train(recipe, model(record))


def states(t: Training) -> int:
    return sum(p.n_bytes for p in t.parts if p.exact)


def held(record: dict[str, Any]) -> int:
    """Bytes that are certainly held: weights in their format, and the states of what is trained."""
    s, found = record["settings"], model(record)
    mode = str(s.get("mode") or "")
    quantised = s.get("quantization") or ("bnb.nf4" if "QLoRA" in mode else None)
    packed = PACKED.get(str(quantised)) if quantised else None
    weights = weight_reads(found, of_bytes(packed)) + 2 * embedding(found)
    if record["config"].get("tied"):
        weights = weight_reads(found, of_bytes(packed))
    adapter = 8 * adapters(Recipe(like="torchtune", **lora(s)), found) if "lora_rank" in s else 0
    if "full" in mode and "cpu_offload" not in s:
        trained = train(
            Recipe(
                like="torchtune", optimizer="adamw" if "AdamW" in str(s.get("optimizer")) else "sgd"
            ),
            found,
        )
        return states(trained)
    if s.get("cpu_offload"):
        return 0
    return (weights + adapter) // int(s.get("fsdp") or s.get("devices") or 1)


def skipped(record: dict[str, Any]) -> str | None:
    """Why a record cannot be compared."""
    s = record["settings"]
    if record.get("config") is None:
        return "no sizes"
    if record["quantity"] in ("peak_difference", "activation_bytes_difference"):
        return "a difference whose settings are not all stated"
    if record["quantity"] == "state_bytes_difference" and "difference" not in s:
        return "a difference of unnamed settings"
    return None


@pytest.mark.parametrize("record", RECORDS, ids=lambda r: r["id"])
def test_the_record(record: dict[str, Any]) -> None:
    why = skipped(record)
    if why is not None:
        pytest.skip(why)
    s, measured = record["settings"], record["value_base"]
    if record["quantity"] == "state_bytes_difference":
        a, b = (int(word) for word in s["difference"].replace(" GPUs", "").split(" minus "))
        assert states(titan(record, a)) - states(titan(record, b)) == pytest.approx(
            record["expected"], abs=64
        )
        return
    if "torchtitan" in record["source"]:
        found = titan(record)
        assert states(found) <= measured
        if not record.get("expected_is_floor"):
            assert found.peak.n_bytes == pytest.approx(record["expected"], rel=0.005)
        return
    if s.get("zero_grad_set_to_none") is not None and s.get("mode") == "train":
        found = careful(record)
        assert found.peak.n_bytes == pytest.approx(measured, rel=0.03)
        if s.get("peak_at"):
            assert found.peak.moment == s["peak_at"]
        return
    assert held(record) <= measured + record["print_tolerance"]
    if s.get("mode") == "inference" and s.get("seq_len") and isinstance(s["seq_len"], int):
        whole = model(record)
        kind = dtype("bfloat16")
        load = Load(
            context=Dim(s["seq_len"], "context"),
            batch=Dim(1, "batch"),
            key_dtype=kind,
            value_dtype=kind,
            state_dtype=kind,
        )
        logits = 2 * s["seq_len"] * record["config"]["vocab_size"]
        assert 2 * int(parameters(whole)) + int(
            formula(whole, load).kv_bytes
        ) + logits == pytest.approx(measured, rel=0.03)


def test_few_records_say_nothing() -> None:
    assert sum(skipped(r) is None for r in RECORDS) >= 0.9 * len(RECORDS)


# the papers' tables


@pytest.mark.parametrize(
    ("dp", "level", "gigabytes"),
    [
        (1, 1, 120),
        (4, 1, 52.5),
        (4, 2, 41.25),
        (4, 3, 30),
        (64, 1, 31.40625),
        (64, 2, 16.640625),
        (64, 3, 1.875),
    ],
)
def test_zero_on_7_5_billion_parameters(dp: int, level: int, gigabytes: float) -> None:
    """Rajbhandari et al. 2020, Table 1: 7.5B on 64 ranks 120 / 31.4 / 16.6 / 1.9 GB."""
    assert float(zero_bytes(Fraction(75, 10), dp, level)) == pytest.approx(gigabytes)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_zero_by_the_list_of_parts(level: int) -> None:
    found = resolve("gpt2").anatomy
    parts = train(Recipe(like="zero", zero=level, dp=64), found)
    assert states(parts) == pytest.approx(
        float(zero_bytes(Fraction(124_439_808), 64, level)), abs=8
    )


def gpt(layers: int, h: int, a: int) -> Anatomy:
    raw = {
        "model_type": "gpt2",
        "n_embd": h,
        "n_layer": layers,
        "n_head": a,
        "vocab_size": 51200,
        "n_positions": 2048,
    }
    return anatomy(config_for(raw))


KORTHIKANTI = {
    "22B": ((48, 6144, 64, 4), (6752, 1264, 844, 624, 204, 96)),
    "175B": ((96, 12288, 96, 1), (2736, 552, 342, 312, 102, 48)),
    "530B": ((105, 20480, 128, 1), (3920, 840, 490, 520, 170, 80)),
    "1T": ((128, 25600, 160, 1), (4900, 1050, 612.5, 650, 212.5, 100)),
}


@pytest.mark.parametrize("name", KORTHIKANTI)
def test_activations_of_megatron_s_models(name: str) -> None:
    """Korthikanti et al. 2022, Table 2 on the models of Table 3, MiB per layer: s = 2048, t = 8."""
    (layers, h, a, b), mib = KORTHIKANTI[name]
    w = Widths(gpt(layers, h, a), 0)
    base = {"like": "megatron", "tokens": 2048, "micro_batch": b, "eager": True}
    settings: list[dict[str, Any]] = [
        {},
        {"tp": 8, "sequence_parallel": False},
        {"tp": 8},
        {"tp": 8, "sequence_parallel": False, "recompute": "selective"},
        {"tp": 8, "recompute": "selective"},
        {"recompute": "full"},
    ]
    found = [megatron_layer(Recipe(**base, **s), w) / 2**20 for s in settings]
    assert found == pytest.approx(list(mib))


def test_selective_recomputation_saves_what_the_paper_says() -> None:
    """70 % of GPT-3's activations, 65 % of the 530B's."""
    for name, saved in (("175B", 0.70), ("530B", 0.65)):
        (layers, h, a, b), _ = KORTHIKANTI[name]
        w = Widths(gpt(layers, h, a), 0)
        whole, less = (
            megatron_layer(
                Recipe(like="megatron", tokens=2048, micro_batch=b, eager=True, tp=8, recompute=r),
                w,
            )
            for r in ("none", "selective")
        )
        assert 1 - less / whole == pytest.approx(saved, abs=0.005)


@pytest.mark.parametrize(
    ("like", "gib"),
    [("accelerate", 119.66), ("megatron", 134.62), ("deepspeed", 149.58), ("bf16", 59.83)],
)
def test_llama_3_8b_by_convention(like: str, gib: float) -> None:
    """16, 18, 20 and 8 bytes per parameter."""
    assert states(train(Recipe(like=like), resolve("llama-3-8b").anatomy)) / 2**30 == pytest.approx(
        gib, abs=0.005
    )


def test_megatron_s_distributed_optimizer_is_6_and_12_over_d() -> None:
    found = resolve("llama-3-8b").anatomy
    n = int(parameters(found))
    assert states(train(Recipe(like="megatron", zero=1, dp=8), found)) == 6 * n + 12 * n // 8


def test_adapters_of_llama_3_8b() -> None:
    """Rank 16 on q, k, v, o: 13,631,488; on all seven: 41,943,040."""
    found = resolve("llama-3-8b").anatomy
    assert adapters(Recipe(lora_rank=16, lora_targets=("q", "k", "v", "o")), found) == 13_631_488
    assert adapters(Recipe(lora_rank=16, lora_targets=("all",)), found) == 41_943_040
    t = train(Recipe(like="bf16", lora_rank=16, lora_targets=("all",)), found)
    assert t.part("adapters") + t.part("gradients") + t.part("optimizer") == 16 * 41_943_040


def test_optimizers_of_one_matrix() -> None:
    """A 1024 x 512 matrix (torch 2.13, bitsandbytes 0.50): bytes of state beside AdamW's 8 per
    element.
    """
    from llmcalc.anatomy import Layers, Weight
    from llmcalc.questions.training import optimizer_bytes

    w = Weight("l.{layer}.w", (Dim(1024), Dim(512)), "matmul", "mlp.up", Layers.all(1))
    n = 1024 * 512
    right = {
        "sgd": 0,
        "momentum": 4 * n,
        "adamw": 8 * n,
        "lion": 4 * n,
        "muon": 4 * n,
        "adafactor": 4 * 1536,
    }
    right["adamw8bit"] = int(2.03125 * n)
    assert {o: optimizer_bytes(OPTIMIZERS[o], [w], 4) for o in right} == right
    small = Weight("l.{layer}.b", (Dim(512),), "add", "mlp.up", Layers.all(1))
    assert (
        optimizer_bytes(OPTIMIZERS["adamw8bit"], [small], 4)
        == optimizer_bytes(OPTIMIZERS["muon"], [small], 4)
        == 4096
    )


def test_the_peak_names_its_moment() -> None:
    """Llama-3.2-3B with checkpointing in the step (32.13 GB), 1B under autocast at the end of
    forward (25.14 GB).
    """
    three = train(
        Recipe(like="bf16", tokens=2048, recompute="full", keep_grads=True),
        resolve("llama-3.2-3b").anatomy,
    )
    one = train(
        Recipe(like="accelerate", tokens=2048, recompute="full", keep_grads=True),
        resolve("llama-3.2-1b").anatomy,
    )
    assert (three.peak.moment, three.peak.n_bytes / 1e9) == (
        "optimizer step",
        pytest.approx(32.13, abs=0.01),
    )
    assert (one.peak.moment, one.peak.n_bytes / 1e9) == (
        "end of forward",
        pytest.approx(25.14, abs=0.01),
    )


def test_context_parallelism_changes_nothing_at_equal_tokens_per_rank() -> None:
    found = resolve("llama-3-8b").anatomy
    peaks = {
        train(
            Recipe(
                like="torchtitan", tokens=32768 * cp, zero=3, dp=8 // cp, cp=cp, recompute="full"
            ),
            found,
        ).peak.n_bytes
        for cp in (1, 2, 4, 8)
    }
    assert len(peaks) == 1


@pytest.mark.reference
@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3_moe"])
@pytest.mark.parametrize("like", ["fp32", "bf16"])
def test_torch_allocates_what_is_predicted(name: str, like: str, tmp_path: Path) -> None:
    """A real step: bytes of parameters, gradients and AdamW's moments, tensor by tensor."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.live.models import reference

    built = (
        reference(name, tmp_path).train().to(torch.bfloat16 if like == "bf16" else torch.float32)
    )
    optimizer = torch.optim.AdamW(built.parameters())
    ids = torch.randint(0, 90, (2, 9))
    built(ids, labels=ids).loss.backward()
    optimizer.step()
    parameters_ = list(built.parameters())
    moments = [s[k] for s in optimizer.state.values() for k in ("exp_avg", "exp_avg_sq")]
    t = train(Recipe(like=like), resolve(str(tmp_path)).anatomy)
    assert sum(p.nbytes for p in parameters_) == t.part("weights")
    assert sum(p.grad.nbytes for p in parameters_ if p.grad is not None) == t.part("gradients")
    assert sum(m.nbytes for m in moments) == t.part("optimizer")


def saved_by_autograd(layers: int, sizes: dict[str, Any], tokens: int) -> int:
    """Bytes that the reference's Llama keeps for its backward pass, weights left out."""
    import torch
    from transformers import LlamaConfig, LlamaModel

    built = LlamaModel(LlamaConfig(num_hidden_layers=layers, **sizes)).to(torch.bfloat16).train()
    own = {p.untyped_storage().data_ptr() for p in built.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        out = built(torch.randint(0, 10, (1, tokens)), use_cache=False)
    assert out is not None
    return sum(kept.values())


@pytest.mark.reference
def test_autograd_saves_at_most_what_is_said() -> None:
    """A layer of the reference's Llama in bf16, byte for byte: 20h + 8f + 4·n_kv·d_h and 8 +
    4·heads of statistics per token; said is the same with keys and values at the queries' width,
    as other versions of it keep them.
    """
    pytest.importorskip("transformers")
    sizes = {
        "hidden_size": 256,
        "intermediate_size": 640,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 11,
        "attn_implementation": "sdpa",
    }
    tokens = 48
    measured = saved_by_autograd(3, sizes, tokens) - saved_by_autograd(2, sizes, tokens)
    found = anatomy(config_for({"model_type": "llama", "num_hidden_layers": 1, **sizes}))
    said = kept_per_token(Recipe(like="bf16"), Widths(found, 0)) * tokens
    exact = tokens * (20 * 256 + 8 * 640 + 4 * 2 * 32 + 8 + 4 * 8)
    assert measured == pytest.approx(exact, rel=0.02)
    assert 0.95 * measured < said < 1.15 * measured


@given(
    st.sampled_from(["gpt2", "llama-3-8b", "mixtral-8x7b"]),
    st.integers(0, 3),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
)
def test_more_sharding_never_costs_more_and_shares_cover_the_whole(
    name: str, zero: int, dp: int, tp: int
) -> None:
    found = resolve(name).anatomy
    here = train(Recipe(like="megatron", zero=zero, dp=dp, tp=tp), found)
    if zero:
        assert states(here) <= states(
            train(Recipe(like="megatron", zero=zero - 1, dp=dp, tp=tp), found)
        )
    whole = train(Recipe(like="megatron"), found)
    assert states(here) * dp * tp >= states(whole)
    full, none = (
        train(Recipe(like="megatron", tp=tp, recompute=r), found).part("activations")
        for r in ("full", "none")
    )
    assert full <= none


def test_what_is_sent() -> None:
    """A ring's all-reduce of 18 bytes' worth: 2·(n - 1)/n of the gradients; nothing where nothing
    is divided.
    """
    found = resolve("gpt2").anatomy
    assert traffic(Recipe(like="zero"), found) == []
    (only,) = traffic(Recipe(like="zero", dp=4), found)
    assert only.n_bytes == 2 * 124_439_808 * 2 * 3 // 4
    names = [t.name for t in traffic(Recipe(like="megatron", zero=1, dp=2, tp=2, pp=2), found, 4)]
    assert names == [
        "reduce-scatter of gradients",
        "all-gather of weights",
        "all-reduce of activations",
        "point to point",
    ]
    assert any(
        t.name.startswith("all-to-all")
        for t in traffic(Recipe(like="megatron", dp=2, ep=2), resolve("mixtral-8x7b").anatomy)
    )


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(optimizer="adamx"),
        Recipe(like="nobody"),
        Recipe(micro_batch=0),
        Recipe(zero=4),
        Recipe(like="megatron", tp=5),
        Recipe(like="megatron", pp=13),
        Recipe(like="accelerate", tp=2),
        Recipe(like="megatron", lora_rank=4, lora_targets=("q",)),
        Recipe(like="accelerate", recompute="selective"),
        Recipe(tokens=7, cp=2),
    ],
)
def test_what_cannot_be_is_refused(recipe: Recipe) -> None:
    with pytest.raises(InputError):
        train(recipe, resolve("gpt2").anatomy)


def test_every_profile_names_its_source() -> None:
    assert all(len(p.source) > 20 for p in PROFILES.values())
