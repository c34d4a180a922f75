"""Adapters: what PEFT's config says of them against tensors of the shapes that PEFT writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.conftest import Ran
from tests.sources.fake_hub import serving
from tests.sources.test_hub import ran

Cli = Callable[..., Ran]
SHAPES = {
    "q_proj": (2048, 2048),
    "k_proj": (512, 2048),
    "v_proj": (512, 2048),
    "down_proj": (2048, 8192),
}
"""Llama-3.2-1B: out, in."""
PATHS = {"down_proj": "mlp"}
LAYERS = 16


def write(
    folder: Path,
    targets: list[str],
    rank: int = 8,
    dora: bool = False,
    weights: bool = True,
    **more: Any,
) -> int:
    """An adapter as PEFT saves it (peft/tuners/lora: lora_A r x in, lora_B out x r); its
    parameters.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 16,
        "target_modules": targets,
        "base_model_name_or_path": "meta-llama/Llama-3.2-1B",
        "bias": "none",
        "use_dora": dora,
        **more,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for layer in range(LAYERS):
        for name in targets:
            if name in SHAPES:
                stem = (
                    f"base_model.model.model.layers.{layer}.{PATHS.get(name, 'self_attn')}.{name}"
                )
                out, into = SHAPES[name]
                tensors[f"{stem}.lora_A.weight"] = np.zeros((rank, into), np.float32)
                tensors[f"{stem}.lora_B.weight"] = np.zeros((out, rank), np.float32)
                if dora:
                    tensors[f"{stem}.lora_magnitude_vector"] = np.zeros((out,), np.float32)
    if weights:
        save_file(tensors, folder / "adapter_model.safetensors")
    return sum(t.size for t in tensors.values())


def facts(cli: Cli, folder: Path) -> dict[str, Any]:
    found = cli("params", folder, "--json")
    assert found.code == 0, found.err
    answer: dict[str, Any] = json.loads(found.out)
    return {**answer["facts"], "rows": answer["rows"], "notes": answer["notes"]}


@pytest.mark.parametrize(
    "targets", [["q_proj", "v_proj"], ["q_proj", "k_proj", "v_proj", "down_proj"]]
)
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("weights", [False, True])
def test_what_an_adapter_adds(
    cli: Cli, tmp_path: Path, targets: list[str], dora: bool, weights: bool
) -> None:
    """By its tensors, or by r·(in + out) and out for DoRA's magnitudes: the same number."""
    want = write(tmp_path, targets, dora=dora, weights=weights)
    found = facts(cli, tmp_path)
    assert found["total_params"] == found["predicted_params"] == want
    assert found["base_params"] == 1_235_814_400 and len(found["rows"]) == len(targets)
    assert found["rows"][0]["part"].endswith("q_proj")


def test_the_published_count(cli: Cli, tmp_path: Path) -> None:
    """PEFT's README: r = 8 on q_proj and v_proj of Llama-2-7B trains 4,194,304 parameters."""
    write(
        tmp_path,
        ["q_proj", "v_proj"],
        weights=False,
        base_model_name_or_path="meta-llama/Llama-2-7b-hf",
    )
    assert facts(cli, tmp_path)["total_params"] == 4_194_304


def test_ranks_by_module(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, ["q_proj", "v_proj"], rank=8, weights=False, rank_pattern={"v_proj": 32})
    found = facts(cli, tmp_path)
    assert found["total_params"] == LAYERS * (8 * (2048 + 2048) + 32 * (512 + 2048))


def test_modules_that_are_saved_whole(cli: Cli, tmp_path: Path) -> None:
    plain = write(tmp_path / "a", ["q_proj"])
    write(tmp_path / "b", ["q_proj"], weights=False, modules_to_save=["embed_tokens"])
    assert facts(cli, tmp_path / "b")["total_params"] == plain + 128256 * 2048


@pytest.mark.parametrize(
    "more",
    [
        {"target_modules": "(a+)+$"},
        {"target_modules": "all-linear"},
        {"rank_pattern": {"^(a|a)*$": 4}},
        {"bias": "all"},
        {"layers_to_transform": [1, 2]},
        {"base_model_name_or_path": "/home/somebody/model"},
        {"base_model_name_or_path": None},
    ],
)
def test_where_the_config_does_not_say_it_the_tensors_do(
    cli: Cli, tmp_path: Path, more: dict[str, Any]
) -> None:
    """A pattern from a file is not run, a path of another machine is not followed: the tensors are
    counted.
    """
    want = write(tmp_path, ["q_proj", "v_proj"], **more)
    found = facts(cli, tmp_path)
    assert found["total_params"] == want and found["predicted_params"] is None
    assert any("tensors alone" in note for note in found["notes"])
    (tmp_path / "adapter_model.safetensors").unlink()
    refused = cli("params", tmp_path)
    assert refused.code == 2 and "no tensors to count" in refused.err


@pytest.mark.parametrize(
    "broken", [{"peft_type": "IA3"}, {"r": 0}, {"r": "8"}, {"r": True}, {"r": 2**80}]
)
def test_an_adapter_that_is_none(cli: Cli, tmp_path: Path, broken: dict[str, Any]) -> None:
    write(tmp_path, ["q_proj"], **broken)
    assert cli("params", tmp_path).code == 2


def test_an_adapter_of_the_hub(tmp_path: Path) -> None:
    want = write(tmp_path / "hub" / "org" / "lora", ["q_proj", "v_proj"])
    with serving(tmp_path / "hub") as hub:
        found = ran(hub, tmp_path / "home", "params", "org/lora", "--json")
        assert found.code == 0, found.err
        answer = json.loads(found.out)["facts"]
        assert answer["total_params"] == want and answer["share_of_base"] == want / 1_235_814_400
        assert hub.sent < 100_000  # its header, not its weights


@pytest.mark.parametrize("dora", [(), ("--dora",)])
def test_training_counts_the_same_adapter(cli: Cli, tmp_path: Path, dora: tuple[str, ...]) -> None:
    want = write(tmp_path, ["q_proj", "v_proj"], dora=bool(dora))
    words = (
        "train",
        "llama-3.2-1b",
        "--precision",
        "bf16",
        "--lora-rank",
        8,
        "--lora-targets",
        "q,v",
        *dora,
        "--json",
    )
    assert json.loads(cli(*words).out)["facts"]["trainable"] == want
    assert cli("train", "llama-3.2-1b", "--dora").code == 2
