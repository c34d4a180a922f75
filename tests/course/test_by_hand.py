"""Small calculations by hand: torch's own answers, the deeper toy model, and wrong input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.cli.trace.by_hand import known
from llmcalc.course.toy import IDS, TARGETS, D, Toy, backward, forward, toy
from tests.conftest import Ran

Cli = Callable[..., Ran]
X = [[0.3, -1.25, 2.0, 0.0, 7.5], [1.0, 2.0, 3.0, 4.0, 5.0]]


def matrices(cli: Cli, **calculation: Any) -> dict[str, Any]:
    ran = cli("trace", "--by-hand", json.dumps(calculation), "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)["facts"]["matrices"]
    return found


def same(found: Any, want: Tensor) -> bool:
    return torch.allclose(torch.tensor(found, dtype=torch.float64), want, rtol=0, atol=1e-12)


def test_norms_and_activations_are_torchs(cli: Cli) -> None:
    x, gain, bias = (
        torch.tensor(X, dtype=torch.float64),
        torch.arange(1.0, 6).double(),
        torch.ones(5).double(),
    )
    given = {"x": X, "gain": gain.tolist()}
    found = matrices(cli, layernorm={**given, "bias": bias.tolist()})
    assert same(found["output"], F.layer_norm(x, (5,), gain, bias)) and same(
        found["normalised"], F.layer_norm(x, (5,))
    )
    assert same(matrices(cli, rmsnorm=given)["output"], F.rms_norm(x, (5,), gain, 1e-6))
    found = matrices(cli, gelu=X)
    assert same(found["GELU, tanh"], F.gelu(x, approximate="tanh")) and same(
        found["GELU"], F.gelu(x)
    )
    assert same(found["SiLU"], F.silu(x)) and same(found["ReLU"], F.relu(x))


def test_a_product(cli: Cli) -> None:
    a, b = torch.tensor(X, dtype=torch.float64), torch.tensor(X, dtype=torch.float64).T
    found = matrices(cli, matmul={"A": X, "B": b.tolist()})
    assert same(found["C"], a @ b)


def logits(m: Toy) -> Tensor:
    """The same model by torch's modules."""
    x = torch.tensor(m.embedding[list(IDS)] + m.positions)
    norm = (lambda t: F.layer_norm(t, (D,))) if m.norm else (lambda t: t)
    for b in m.blocks:
        n = norm(x)
        q, k, v = (n @ torch.tensor(w) for w in (b.w_q, b.w_k, b.w_v))
        mixed = F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
        x = x + mixed @ torch.tensor(b.w_o)
        if b.w_in is not None:
            x = x + F.gelu(norm(x) @ torch.tensor(b.w_in), approximate="tanh") @ torch.tensor(
                b.w_out
            )
    return norm(x) @ torch.tensor(m.embedding).T


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize(
    ("mlp", "norm"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_the_full_block_is_torchs(layers: int, mlp: bool, norm: bool) -> None:
    m = toy(0.5, 1, layers, mlp, norm)
    steps, loss = forward(m)
    want = logits(m)
    assert same(steps[-2].values, want)
    assert loss == pytest.approx(F.cross_entropy(want, torch.tensor(TARGETS)).item(), rel=1e-12)
    assert backward(m)[1] < loss


def test_more_is_drawn_after_what_was_there(cli: Cli) -> None:
    """An MLP changes neither the embedding nor attention's weights of the first layer."""
    plain, full = toy(), toy(mlp=True, norm=True)
    assert (plain.blocks[0].w_o == full.blocks[0].w_o).all() and (
        plain.embedding == full.embedding
    ).all()
    ran = cli("trace", "--toy", "--mlp", "--norm", "--layers", 2, "--json")
    found = json.loads(ran.out)["facts"]["matrices"]
    assert {"N 0", "inner 0", "Y 1", "normed"} <= set(found)


@pytest.mark.parametrize("name", known())
def test_every_calculation_has_an_example(cli: Cli, name: str) -> None:
    ran = cli("trace", "--by-hand", name)
    assert ran.code == 0 and len(ran.out.splitlines()) > 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nothing", "known: attention"),
        ("gone.json", "gone.json"),
        ("{", "not JSON"),
        ("[1]", "no calculation"),
        ('{"gelu": [1], "relu": [1]}', "one calculation"),
        ('{"gelu": 3}', "object"),
        ('{"gelu": {"x": [1], "y": 2}}', "'y'"),
        ('{"layernorm": {"x": [1, 1], "eps": 0}}', "alike"),
        ('{"rmsnorm": {"x": [0, 0], "eps": 0}}', "all 0"),
        ('{"layernorm": {"x": [1, 2], "gain": [1]}}', "wide"),
        ('{"layernorm": {"x": [1, NaN]}}', "NaN"),
        ('{"cosine": {"a": [0, 0], "b": [1, 1]}}', "no direction"),
        ('{"cosine": {"a": [0]}}', "two"),
        ('{"residual": {"slope": 99, "layers": [1000]}}', "float64"),
        ('{"residual": {"slope": 0.8, "layers": []}}', "layers"),
        ('{"neuron": {"x": [1], "weights": [[1, 2]], "thresholds": [1]}}', "weights"),
        ('{"gradient-step": {"w": true, "rate": 1, "gradients": [1]}}', "w is"),
        ('{"positions": {"d": 3}}', "even"),
        ('{"dropout": {"p": 1, "x": [1]}}', "nothing is kept"),
        ('{"matmul": {"m": 2, "k": 2}}', "'n'"),
        ('{"matmul": {"A": [[1, 2]], "B": [[1]]}}', "no product"),
        ('{"shortcuts": {"widths": [2, 1], "x": [1]}}', "widths"),
    ],
)
def test_wrong_input_is_one_line(cli: Cli, text: str, says: str) -> None:
    ran = cli("trace", "--by-hand", text)
    assert ran.code == 2 and says in ran.err and "Traceback" not in ran.err and not ran.out


def test_options_that_do_not_go_together(cli: Cli) -> None:
    for words in (
        ("--mlp",),
        ("--toy", "--by-hand", "gelu"),
        ("--toy", "--d", 8),
        ("--toy", "--layers", 65),
    ):
        assert cli("trace", *words).code == 2
