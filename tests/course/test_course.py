"""Worked examples of attention and of the toy model, through the command: numbers of a published
course.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from llmcalc.course.attention import attention, with_cache
from llmcalc.course.toy import IDS, TARGETS, forward, toy
from tests.conftest import Ran

Cli = Callable[..., Ran]
X = [[0.2, 1.0, 0.1], [0.9, 0.1, 0.4], [0.6, 0.4, 0.9]]


def close(found: Any, want: Any, tolerance: float) -> bool:
    return bool(np.allclose(np.array(found, float), np.array(want, float), rtol=0, atol=tolerance))


def said(cli: Cli, *words: object) -> dict[str, Any]:
    ran = cli("trace", *words, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)["facts"]
    return found


def hand(cli: Cli, tmp_path: Path, **given: Any) -> dict[str, Any]:
    (tmp_path / "m.json").write_text(json.dumps(given))
    return said(cli, "--attention-by-hand", tmp_path / "m.json")


def test_toy_forward(cli: Cli) -> None:
    facts = said(cli, "--toy")
    assert facts["loss"] == pytest.approx(2.079017, abs=1e-6) and facts[
        "ln_vocab"
    ] == pytest.approx(2.079442, abs=1e-6)
    assert close(facts["matrices"]["weights"], [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3], 1e-4)
    assert close(facts["p_target"], [0.1251, 0.125, 0.1251], 1e-4) and facts["next"] == "sitting"
    assert facts["matrices"]["probabilities"][2][5] == pytest.approx(0.12498, abs=1e-5)


def test_toy_of_wider_weights(cli: Cli) -> None:
    assert said(cli, "--toy", "--std", 0.5)["loss"] == pytest.approx(1.871, abs=1e-4)


def test_toy_backward(cli: Cli) -> None:
    facts = said(cli, "--toy", "--backward")
    want = [
        [0.0417, -0.2916, 0.0417, 0.0416, 0.0417, 0.0417, 0.0417, 0.0417],
        [0.0417, 0.0418, -0.2917, 0.0416, 0.0417, 0.0417, 0.0416, 0.0416],
        [0.0417, 0.0417, 0.0417, -0.2916, 0.0417, 0.0417, 0.0416, 0.0417],
    ]
    assert close(facts["matrices"]["dL/dlogits"], want, 6e-5) and close(
        facts["row_sums"], [0, 0, 0], 1e-12
    )
    cat = facts["matrices"]["dL/dhead"][1]
    assert [math.copysign(1, x) for x in cat] == [-1, -1, -1, 1]
    assert close(facts["matrices"]["change"][1], [0.0003, 0.0003, 0.0003, -0.0003], 1e-6)
    assert facts["loss_after"] == pytest.approx(2.078987, abs=1e-6)


def test_toy_gradient_is_torchs() -> None:
    m = toy(0.5, 3)
    head = torch.tensor(m.embedding, requires_grad=True)
    steps, loss = forward(m)
    hidden = torch.tensor(next(s.values for s in steps if s.name == "H"))
    theirs = torch.nn.functional.cross_entropy(hidden @ head.T, torch.tensor(TARGETS))
    theirs.backward()
    assert theirs.item() == pytest.approx(loss, rel=1e-12) and len(IDS) == 3
    from llmcalc.course.toy import backward

    found, _ = backward(m)
    assert head.grad is not None and close(found[1].values, head.grad.numpy(), 1e-12)
    before = head.detach().clone()
    torch.optim.AdamW([head], lr=3e-4, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1).step()
    assert close(found[2].values, (head.detach() - before).numpy(), 1e-12)


def test_attention_without_projections(cli: Cli, tmp_path: Path) -> None:
    found = hand(cli, tmp_path, X=X)["matrices"]
    assert close(
        found["scores"], [[1.05, 0.32, 0.61], [0.32, 0.98, 0.94], [0.61, 0.94, 1.33]], 1e-4
    )
    assert close(
        found["scaled"],
        [[0.6062, 0.1848, 0.3522], [0.1848, 0.5658, 0.5427], [0.3522, 0.5427, 0.7679]],
        1e-4,
    )
    assert close(
        found["weights"],
        [[0.4112, 0.2698, 0.319], [0.2568, 0.3759, 0.3673], [0.2684, 0.3248, 0.4068]],
        1e-4,
    )
    assert close(
        found["output"],
        [[0.5164, 0.5658, 0.4361], [0.6101, 0.4413, 0.5066], [0.5901, 0.4636, 0.5229]],
        1e-4,
    )


def test_attention_with_a_mask_and_a_cache(cli: Cli, tmp_path: Path) -> None:
    facts = hand(cli, tmp_path, X=X, causal=True)
    assert close(
        facts["matrices"]["weights"],
        [[1, 0, 0], [0.4059, 0.5941, 0], [0.2684, 0.3248, 0.4068]],
        1e-4,
    )
    assert facts["matrices"]["masked"][0][1] == "-inf"
    assert (
        close(facts["cached_output"][2], [0.5901, 0.4636, 0.5229], 1e-4)
        and facts["cache_difference"] < 1e-12
    )


def test_one_query(cli: Cli, tmp_path: Path) -> None:
    """The second token's query: of three keys the third is in the future, so it sees two."""
    q, k = (
        [[9, 9, 9, 9], [1.0, 0.5, -0.2, 0.3]],
        [[0.9, 0.4, -0.1, 0.2], [0.2, 0.1, 0.9, 0.0], [0.1, 0.0, 0.2, 0.1]],
    )
    open_to_all = hand(cli, tmp_path, Q=q, K=k, V=k)["matrices"]
    assert close(open_to_all["scores"][1], [1.18, 0.07, 0.09], 1e-9)
    assert close(open_to_all["scaled"][1], [0.59, 0.035, 0.045], 1e-9)
    masked = hand(cli, tmp_path, Q=q, K=k[:2], V=k[:2], causal=True)["matrices"]
    assert close(masked["weights"][1], [0.6353, 0.3647], 1e-4)
    unscaled = hand(cli, tmp_path, Q=q, K=k[:2], V=k[:2], causal=True, scaled=False)["matrices"]
    assert close(unscaled["weights"][1], [0.7521, 0.2479], 1e-4)


def test_order_does_not_matter(cli: Cli, tmp_path: Path) -> None:
    q, k, v = [[2, 1], [1, 2], [1, 3]], [[1, 0], [0, 2], [1, 1]], [[1, 0], [0, 1], [1, 1]]
    out = hand(cli, tmp_path, Q=q, K=k, V=v)["matrices"]["output"]
    assert close(out, [[0.7517, 0.7517], [0.38, 0.9257], [0.214, 0.9771]], 1e-4)
    turned = hand(cli, tmp_path, Q=q[::-1], K=k[::-1], V=v[::-1])["matrices"]["output"]
    assert close(turned, out[::-1], 1e-12)


def test_several_heads_are_torchs(cli: Cli, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, *ws = torch.randn(5, 6, dtype=torch.float64), *torch.randn(4, 6, 6, dtype=torch.float64)
    names = dict(zip(("W_Q", "W_K", "W_V", "W_O"), (w.tolist() for w in ws), strict=True))
    found = hand(cli, tmp_path, X=x.tolist(), heads=3, causal=True, **names)["matrices"]
    q, k, v = ((x @ w).view(5, 3, 2).transpose(0, 1) for w in ws[:3])
    want = (
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        .transpose(0, 1)
        .reshape(5, 6)
    )
    assert close(found["concat"], want.numpy(), 1e-12) and close(
        found["projected"], (want @ ws[3]).numpy(), 1e-12
    )


@given(st.data())
def test_a_cache_changes_nothing(data: Any) -> None:
    n, d = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))
    q, k, v = (data.draw(arrays(np.float64, (n, d), elements=st.floats(-10, 10))) for _ in range(3))
    steps = {s.name: s.values for s in attention(q, k, v, causal=True)}
    assert np.allclose(with_cache(q, k, v), steps["output"], atol=1e-12)
    assert np.allclose(steps["weights"].sum(axis=1), 1) and not np.triu(steps["weights"], 1).any()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"X": [[1, 2], [3]]}, "X"),
        ({"X": [["a"]]}, "X"),
        ({"Y": [[1]]}, "Y"),
        ({"Q": [[1]]}, "X"),
        ({"X": [[1, 2]], "heads": 3}, "heads"),
        ({"X": [[1, 2]], "W_Q": [[1]]}, "W_Q"),
        ({"X": [[1, 2]], "W_O": [[1]]}, "W_O"),
        ({"Q": [[1, 2]], "K": [[1]], "V": [[1]]}, "wide"),
        ({"Q": [[1], [2]], "K": [[1]], "V": [[1]], "causal": True}, "causal"),
        ({"X": [[1]], "causal": 3}, "causal"),
        ({"X": [[1] * 65]}, "64"),
    ],
)
def test_wrong_input_is_one_line(
    cli: Cli, tmp_path: Path, given: dict[str, Any], says: str
) -> None:
    (tmp_path / "m.json").write_text(json.dumps(given))
    ran = cli("trace", "--attention-by-hand", tmp_path / "m.json")
    assert ran.code == 2 and says in ran.err.splitlines()[0] and "Traceback" not in ran.err


def test_options_that_do_not_go_together(cli: Cli, tmp_path: Path) -> None:
    for words in (
        ("--backward",),
        ("--toy", "gpt2"),
        ("--toy", "--std", 0),
        ("--toy", "--seed", -1),
        ("--std", 1),
    ):
        assert cli("trace", *words).code == 2
    assert cli("trace", "--attention-by-hand", tmp_path / "gone.json").code == 2
