"""Public bug reports on running models, each with the right outcome; the fixtures are small random
checkpoints.

Logits: transformers 5.24.0, eager attention, float32.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).parent / "fixtures"
IDS = "3,1,4,1,5,9,2,6"
LLAMA = [
    *(
        -1.30022,
        -0.93916,
        -0.22079,
        2.21966,
        -0.70234,
        2.98883,
        2.08923,
        -2.42201,
        0.36068,
        0.71818,
    ),
    *(1.41039, -0.66598, -1.14816, 0.49323, 1.0771, -0.15703, 0.71371, 0.71585, 2.44494, 0.12445),
]
GEMMA = [
    *(1.09563, 0.12402, 0.87335, -1.5616, -2.33906, -0.81138, 0.68186, -1.6603, 0.53298, -1.53151),
    *(
        0.9043,
        -0.38848,
        -1.47661,
        -0.06816,
        0.78193,
        0.06409,
        -2.40823,
        0.34554,
        -0.79059,
        -2.86971,
    ),
]
GPT2 = [
    *(1.98882, -1.35761, -3.71064, 0.32216, 1.36795, -0.18209, 1.09011, 0.95371, 0.12077, 0.62298),
    *(
        -1.22118,
        -1.84159,
        0.30511,
        2.96984,
        -2.96732,
        1.33764,
        -1.26374,
        -0.96698,
        -1.63046,
        0.17456,
    ),
]


def traced(cli: Callable[..., Any], name: str, ids: str = IDS, *more: str) -> dict[str, Any]:
    ran = cli("trace", FIXTURES / name, "--live", "--ids", ids, "--device", "cpu", "--json", *more)
    assert ran.code == 0, ran.err
    return dict(json.loads(ran.out)["facts"])


def near(found: list[float], right: list[float]) -> None:
    assert found == pytest.approx(right, abs=1e-4)


@pytest.mark.parametrize("name", ["llama_gqa", "llama_gqa.gguf"])
def test_pairs_of_neighbours_and_pairs_of_halves(cli: Callable[..., Any], name: str) -> None:
    """huggingface/transformers#31788: a GGUF's rows are permuted; the logits are the same."""
    near(traced(cli, name)["last_logits"], LLAMA)


def test_soft_caps(cli: Callable[..., Any]) -> None:
    """unslothai/unsloth-zoo#593: cap · tanh(x / cap)."""
    found = traced(cli, "gemma2_softcap")["last_logits"]
    near(found, GEMMA)
    assert max(map(abs, found)) < 3


def test_no_head_in_the_file_is_never_a_random_one(cli: Callable[..., Any]) -> None:
    """sgl-project/sglang#1508."""
    ran = cli("trace", FIXTURES / "llama_untied_no_head", "--live", "--ids", IDS)
    assert ran.code == 2
    assert "lm_head.weight" in ran.err and "Traceback" not in ran.err


@pytest.mark.parametrize(("name", "right"), [("gpt2_conv1d", GPT2), ("llama_gqa", LLAMA)])
def test_padding_on_the_left_changes_nothing(
    cli: Callable[..., Any], name: str, right: list[float]
) -> None:
    """huggingface/transformers#25420: positions are shifted, padding is masked."""
    near(traced(cli, name, IDS, "--pad-left", "3")["last_logits"], right)
    near(traced(cli, name)["last_logits"], right)


def test_no_token_sees_the_future(cli: Callable[..., Any]) -> None:
    """meta-pytorch/torchtune#959: the logits of five tokens are those of the first five
    of eight.
    """
    torch = pytest.importorskip("torch")
    from llmcalc.live.load import load
    from llmcalc.live.trace import ids_tensor
    from llmcalc.sources import resolve

    live = load(resolve(str(FIXTURES / "llama_gqa")), "cpu")
    ids = ids_tensor(live, [[3, 1, 4, 1, 5, 9, 2, 6]])
    whole = live.runner(ids, live.runner.cache(1, 8), every=True)[0, 4]
    short = traced(cli, "llama_gqa", "3,1,4,1,5")["last_logits"]
    near(short, whole.tolist())
    cache = live.runner.cache(1, 8)
    live.runner(ids[:, :5], cache)
    for t in range(5, 8):
        last = live.runner(ids[:, t : t + 1], cache)
    assert float((last[0] - torch.tensor(LLAMA)).abs().max()) < 1e-4


def test_memory_has_its_names_and_loading_is_not_twice_the_weights(
    tmp_path: Path, cli: Callable[..., Any]
) -> None:
    """huggingface/transformers#13466, pytorch#37250: 250 MiB of weights, loaded with a peak of at
    most 1.1 of that.
    """
    import subprocess
    import sys

    torch = pytest.importorskip("torch")
    save = pytest.importorskip("safetensors.torch").save_file
    from llmcalc.sources import resolve
    from llmcalc.sources.names import promised

    sizes = {
        "vocab_size": 1024,
        "hidden_size": 1024,
        "intermediate_size": 2752,
        "num_hidden_layers": 5,
    }
    raw = {"model_type": "llama", "num_attention_heads": 16, "torch_dtype": "float32", **sizes}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    wants = promised(resolve(str(tmp_path)).anatomy)
    save({n: torch.zeros(w.shape) for n, w in wants.items()}, tmp_path / "model.safetensors")
    command = [
        sys.executable,
        "-m",
        "llmcalc",
        "check",
        str(tmp_path),
        "--live",
        "--device",
        "cpu",
        "--json",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    facts = json.loads(ran.stdout)["facts"]
    assert facts["weight_bytes"] == facts["weight_bytes_predicted"] > 240 * 2**20
    assert facts["kv_bytes"] == facts["kv_bytes_predicted"]
    assert (
        facts["peak_resident_growth_bytes"]
        < 1.1 * facts["weight_bytes"] + facts["kv_bytes"] + 16 * 2**20
    )
