"""``llmcalc sample``: published mistakes of other samplers, the course's values, edge cases and
wrong input.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import Ran

Cli = Callable[..., Ran]


def facts(cli: Cli, *args: object) -> dict[str, Any]:
    ran = cli("sample", *args, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)["facts"]
    return found


def logs(*probabilities: float) -> str:
    return "--logits=" + ",".join(f"{math.log(p):.9f}" for p in probabilities)


KEPT = [
    (
        "huggingface/transformers#18976: a sum of exactly p",
        (logs(0.3, 0.1, 0.1, 0.5), "--top-p", 0.8),
        [0, 3],
    ),
    (
        "fishaudio/fish-speech#1171: the token that crosses p stays",
        (logs(0.5, 0.35, 0.1, 0.05), "--top-p", 0.9),
        [0, 1, 2],
    ),
    (
        "BlinkDL/ChatRWKV#170: p = 1 keeps all",
        (logs(0.1, 0.2, 0.3, 0.4), "--top-p", 1),
        [0, 1, 2, 3],
    ),
    ("apple/axlearn#1022: ties at k", ("--logits=3,1,3", "--top-k", 1), [0, 2]),
    ("apple/axlearn#1022: exactly k", ("--logits=3,1,3", "--top-k", 1, "--like", "llama.cpp"), [0]),
    ("apple/axlearn#1022: greedy", ("--logits=3,1,3", "--temperature", 0), [0]),
    ("microsoft/onnxruntime-genai#1211: T = 0", ("--logits=1,3,2", "--temperature", 0), [1]),
    (
        "timtoole02/Camelid#534: temperature first",
        ("--logits=3,2,1", "--temperature", 0.5, "--top-p", 0.8),
        [0],
    ),
    (
        "timtoole02/Camelid#534: temperature last",
        ("--logits=3,2,1", "--temperature", 0.5, "--top-p", 0.8, "--order", "llama.cpp"),
        [0, 1],
    ),
    (
        "oobabooga/textgen#4463: temperature first",
        (logs(0.95, 0.005, 0.045), "--temperature", 2, "--min-p", 0.05, "--order", "transformers"),
        [0, 1, 2],
    ),
    (
        "oobabooga/textgen#4463: temperature last",
        (
            logs(0.95, 0.005, 0.045),
            "--temperature",
            2,
            "--min-p",
            0.05,
            "--order",
            "min-p,temperature",
        ),
        [0],
    ),
    (
        "state-spaces/mamba#927: of the likeliest, not of token 0",
        ("--logits=-5,3,2,1,-2", "--min-p", 0.1),
        [1, 2, 3],
    ),
    (
        "timtoole02/Camelid#539: typical may drop the likeliest",
        (logs(0.6, 0.3, 0.1), "--typical-p", 0.2),
        [1],
    ),
    ("lablup/mlxcel#1377: index 0 can go", (logs(0.45, 0.275, 0.275), "--typical-p", 0.3), [1, 2]),
    (
        "lablup/mlxcel#1377: -inf does not count",
        (logs(0.45, 0.275, 0.275) + ",-inf,-inf", "--typical-p", 0.3),
        [1, 2],
    ),
    ("lablup/mlxcel: k beyond the vocabulary", ("--logits=1,2,3", "--top-k", 100), [0, 1, 2]),
    ("k = 0 is off", ("--logits=1,2,3", "--top-k", 0), [0, 1, 2]),
    ("k = -1 is off under vLLM", ("--logits=1,2,3", "--top-k", -1, "--like", "vllm"), [0, 1, 2]),
    ("p = 0 keeps one", ("--logits=1,2,3", "--top-p", 0), [2]),
    ("min-p = 1 keeps the likeliest and its equals", ("--logits=3,1,3", "--min-p", 1), [0, 2]),
    ("all equal", ("--logits=1,1,1,1,1,1,1,1,1,1", "--top-p", 0.35), [6, 7, 8, 9]),
    ("one infinite", ("--logits=1,inf,2", "--top-p", 0.9), [1]),
]


@pytest.mark.parametrize(("args", "kept"), [c[1:] for c in KEPT], ids=[c[0] for c in KEPT])
def test_kept_set(cli: Cli, args: tuple[object, ...], kept: list[int]) -> None:
    assert facts(cli, *args)["kept"] == kept


def test_mass_and_entropy(cli: Cli) -> None:
    assert facts(cli, logs(0.5, 0.35, 0.1, 0.05), "--top-p", 0.9)["kept_mass"] == pytest.approx(
        0.95
    )
    assert facts(cli, logs(0.6, 0.3, 0.1))["entropy_before"] == pytest.approx(0.897946, abs=1e-6)


def test_a_very_small_p_keeps_one_in_any_format(cli: Cli, tmp_path: Path) -> None:
    """ml-explore/mlx-lm#1912: 1 - p rounds to 1 in half precision, and nothing or everything
    passed.
    """
    import torch
    from safetensors.torch import save_file

    values = np.arange(4096) / 4095
    (tmp_path / "l.json").write_text(json.dumps(values.tolist()))
    np.save(tmp_path / "l.npy", values.astype(np.float32))
    save_file({"logits": torch.tensor(values)[None].bfloat16()}, tmp_path / "l.safetensors")
    for name, top in (("l.json", 1), ("l.npy", 1), ("l.safetensors", 1)):
        found = facts(cli, "--logits-file", tmp_path / name, "--top-p", 1e-8)
        assert found["n_kept"] == top and found["kept"] == [4095], name
    half = cli("sample", "--logits-file", tmp_path / "l.safetensors", "--top-p", 0.5)
    assert "bfloat16; everything is computed in float64" in half.err


def test_penalty_once_per_token_and_negative_logits_multiplied(cli: Cli) -> None:
    """NVIDIA/FasterTransformer#777."""
    asked = (
        "--logits=2,1.8,-1.2,0.5",
        "--prompt-ids",
        "1,1,2",
        "--repetition-penalty",
        1.2,
        "--json",
    )
    rows = json.loads(cli("sample", *asked).out)["rows"]
    assert [r["logit_after"] for r in rows] == pytest.approx([2.0, 1.5, -1.44, 0.5])


def test_filters_that_remove_nothing_do_not_change_the_draws(cli: Cli) -> None:
    """sgl-project/sglang#35697."""
    asked = ("--logits=2,1,0.5,0,-1", "--seed", 7, "--n", 1000)
    first = facts(cli, *asked)["draws"]
    assert len(first) == 1000
    for more in ((), ("--top-k", 5), ("--top-p", 1), ("--min-p", 0)):
        assert facts(cli, *asked, *more)["draws"] == first


def test_draws_follow_the_probabilities(cli: Cli) -> None:
    """sgl-project/sglang-omni#824: noise was added to probabilities in place of their
    logarithms.
    """
    asked = ("sample", logs(0.9, 0.05, 0.05), "--seed", 1, "--n", 20000, "--json")
    rows = json.loads(cli(*asked).out)["rows"]
    assert abs(rows[0]["count"] / 20000 - 0.9) < 0.01 and sum(r["count"] for r in rows) == 20000


def test_large_logits_do_not_overflow(cli: Cli) -> None:
    """uTensor/uTensor#175: exp(378) is infinite; the largest logit is taken off first."""
    asked = ("--logits=-249.873093,-424.126709,-460.292542,378.097443,-292.614532",)
    assert facts(cli, *asked)["chosen"] == 3
    rows = json.loads(cli("sample", *asked, "--json").out)["rows"]
    assert [r["probability"] for r in rows] == pytest.approx([0, 0, 0, 1, 0], abs=1e-12)


def test_the_softmax_of_the_course(cli: Cli) -> None:
    """(2, 1, 0.5, -0.5, -1.5) at T = 0.5, 1 and 2, to four digits; the loss of the first
    is 0.5326.
    """
    wanted = {
        "p0": [0.8384, 0.1135, 0.0417, 0.0056, 0.0008],
        "p1": [0.5871, 0.2160, 0.1310, 0.0482, 0.0177],
        "p2": [0.3938, 0.2389, 0.1860, 0.1128, 0.0684],
    }
    asked = (
        "sample",
        "--logits",
        "2,1,0.5,-0.5,-1.5",
        "--temperature",
        "0.5,1,2",
        "--target",
        0,
        "--json",
    )
    data = json.loads(cli(*asked).out)
    for key, values in wanted.items():
        assert [r[key] for r in data["rows"]] == pytest.approx(values, abs=5.1e-5)
    assert data["facts"]["p1"]["loss"] == pytest.approx(0.5326, abs=5e-5)


def test_every_stage_is_a_column_and_says_what_it_removed(cli: Cli) -> None:
    asked = ("--logits", "2,1,0.5,-0.5,-1.5", "--labels", "a,b,c,d,e", "--top-k", 4, "--top-p", 0.8)
    rows = json.loads(cli("sample", *asked, "--json").out)["rows"]
    assert [r["removed_by"] for r in rows] == [None, None, "top-p", "top-p", "top-k"]
    assert rows[0]["after_top_k"] < rows[0]["after_top_p"] == rows[0]["probability"]
    text = cli("sample", *asked).out
    assert "removed by" in text and "█" in text


def test_defaults_of_an_engine(cli: Cli) -> None:
    asked = ("--logits=3,2,1,0,-9", "--like", "llama.cpp", "--defaults")
    assert facts(cli, *asked)["order"] == ["top-k", "top-p", "min-p", "temperature"]


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--logits", "1,nan,2"), "index 1 is NaN"),
        (("--logits=-inf,-inf",), "minus infinity"),
        (("--logits", ""), "empty"),
        (("--logits", "1,x"), "index 1"),
        ((), "--logits"),
        (("--logits", "1,2", "--labels", "a"), "1 names for 2"),
        (("--logits", "1,2", "--top-p", 1.5), "--top-p is 1.5"),
        (("--logits", "1,2", "--temperature", -1), "--temperature is -1"),
        (("--logits", "1,2", "--temperature", 0, "--like", "transformers"), "--temperature is 0"),
        (("--logits", "1,2", "--top-k", 0, "--like", "transformers"), "--top-k is 0"),
        (("--logits", "1,2", "--top-k", 1.5), "whole number"),
        (("--logits", "1,2", "--min-p", 0.1, "--like", "openai"), "openai has no --min-p"),
        (("--logits", "1,2", "--temperature", 3, "--like", "vllm"), "--temperature is 3"),
        (("--logits", "1,2", "--top-p", 0, "--like", "vllm"), "--top-p is 0"),
        (("--logits", "1,2", "--like", "lama"), "lama"),
        (("--logits", "1,2", "--order", "top-k,top-k"), "twice"),
        (("--logits", "1,2", "--top-p", 0.5, "--order", "top-k,temperature"), "leaves top-p out"),
        (("--logits", "1,2", "--logit-bias", "x"), "id=value"),
        (("--logits", "1,2", "--target", 7), "--target"),
        (("--logits", "1,2", "--draws", 0), "--draws"),
        (("--logits", "1,2", "--seed", -1), "--seed"),
        (("--logits", "1,2", "--repetition-penalty", 0), "--repetition-penalty"),
        (("--logits-file", "nowhere.json"), "nowhere.json"),
        (("--logits", "1,2", "--temperature", "1,2,3,4", "--top-k", "1,2,3,4"), "16 combinations"),
        (("--logits", "1,2", "--plot", "x.txt"), "x.txt"),
    ],
)
def test_wrong_input_is_one_line(cli: Cli, args: tuple[object, ...], word: str) -> None:
    ran = cli("sample", *args)
    assert ran.code == 2 and ran.out == "", ran
    assert ran.err.startswith("error: ") and word in ran.err.splitlines()[0]


@pytest.mark.parametrize(
    "content", ["[1, NaN, true]", "[[1], [2]]", '{"a": 1}', "[1, ", "\x00", '["1"]']
)
def test_hostile_files_are_one_line(cli: Cli, tmp_path: Path, content: str) -> None:
    for ending in ("json", "npy", "safetensors"):
        path = tmp_path / f"l.{ending}"
        path.write_text(content)
        ran = cli("sample", "--logits-file", path)
        assert ran.code == 2 and ran.out == "" and ran.err.startswith("error: "), (ending, ran)


def test_a_pickled_npy_is_not_opened(cli: Cli, tmp_path: Path) -> None:
    np.save(tmp_path / "l.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    assert cli("sample", "--logits-file", tmp_path / "l.npy").code == 2


def test_many_logits_show_the_likeliest(cli: Cli, tmp_path: Path) -> None:
    values = np.zeros(1_000_000)
    values[123_456] = 9
    np.save(tmp_path / "l.npy", values)
    ran = cli("sample", "--logits-file", tmp_path / "l.npy", "--top-k", 1, "--json")
    data = json.loads(ran.out)
    assert (
        data["rows"][0]["id"] == 123_456
        and len(data["rows"]) == 20
        and data["facts"]["kept"] == [123_456]
    )
    assert any("999,980" in n for n in data["notes"])


def test_a_picture(cli: Cli, tmp_path: Path) -> None:
    ran = cli("sample", "--logits", "2,1,0", "--temperature", "0.5,1", "--plot", tmp_path / "p.svg")
    assert ran.code == 0 and "<svg" in (tmp_path / "p.svg").read_text()
