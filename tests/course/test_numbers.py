"""The worked examples of published courses on language models, each through the command that
answers it, as JSON.

``numbers.json`` holds what the texts print, with the tolerance of their digits; where a text's own
code gives another number than its prose, the code's is kept and the note says so.
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

NUMBERS = {x["id"]: x for x in json.loads((Path(__file__).parent / "numbers.json").read_text())}
Ask = Callable[..., dict[str, Any]]
CHECKS: dict[str, Callable[[Ask, dict[str, Any], dict[str, Any]], list[tuple[Any, Any]]]] = {}


def check(name: str) -> Callable[..., Any]:
    """The function that pairs what a command answers with what the text says."""

    def add(function: Any) -> Any:
        CHECKS[name] = function
        return function

    return add


@pytest.fixture
def ask(cli: Callable[..., Ran]) -> Ask:
    """A command's JSON; exit code 0."""

    def run(*words: object) -> dict[str, Any]:
        ran = cli(*words, "--json")
        assert ran.code == 0, ran.err
        found: dict[str, Any] = json.loads(ran.out)
        return found

    return run


def params(ask: Ask, *words: object) -> tuple[dict[str, Any], dict[str, int]]:
    """Facts and the parameters of each row."""
    found = ask("params", *words)
    return found["facts"], {row["part"]: row["params"] for row in found["rows"]}


def hand(ask: Ask, **calculation: Any) -> dict[str, Any]:
    """A calculation by hand on the numbers given."""
    facts: dict[str, Any] = ask("trace", "--by-hand", json.dumps(calculation))["facts"]
    return facts


@check("params.block")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = ask("params", "--d", given["d"], "--layers", 1)
    rows = {row["part"].rpartition(".")[2]: row["params"] for row in found["rows"]}
    _, by_role = params(ask, "--d", 768, "--layers", 1, "--by", "role")
    assert (
        found["facts"]["total_params_formula"] == "12·L·d² + 13·L·d"
        and want["formula"] == "12d² + 13d"
    )
    return [
        (rows["attn"], want["attention"]),
        (rows["mlp"], want["mlp"]),
        (by_role["norm"], want["layernorms"]),
        (found["facts"]["total_params"], want["block"]),
    ]


@check("params.block.parts")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    _, rows = params(ask, "--d", given["d"], "--layers", 1, "--by", "weight")
    found = {
        key: sum(n for name, n in rows.items() if module in name)
        for key, module in (
            ("qkv", "attn.c_attn"),
            ("attn_out", "attn.c_proj"),
            ("mlp_up", "mlp.c_fc"),
            ("mlp_down", "mlp.c_proj"),
            ("layernorms", "ln_"),
        )
    }
    return [(found[key], want[key]) for key in want]


@check("params.gpt2")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    facts, rows = params(ask, "gpt2")
    sizes = (
        "--d",
        given["d"],
        "--layers",
        given["layers"],
        "--vocab",
        given["vocab"],
        "--ctx",
        given["ctx"],
        "--tied",
    )
    described, _ = params(ask, *sizes)
    assert (
        facts["total_params_formula"].replace("·d²", "d²")
        and described["total_params"] == facts["total_params"]
    )
    return [
        (rows["wte"], want["token_embedding"]),
        (rows["wpe"], want["position_embedding"]),
        (sum(n for name, n in rows.items() if name.startswith("h.")), want["blocks"]),
        (rows["ln_f"], want["final_layernorm"]),
        (facts["total_params"], want["total"]),
    ]


@check("params.gpt2.untied")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    untied, _ = params(ask, "gpt2", "--set", "tie_word_embeddings=false")
    return [(untied["total_params"] - params(ask, "gpt2")[0]["total_params"], want["extra"])]


@check("params.family")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    named = {"medium": "gpt2-medium", "large": "gpt2-large", "xl": "gpt2-xl"}
    pairs = [(params(ask, preset)[0]["total_params"], want[key]) for key, preset in named.items()]
    d, layers, ctx = given["gpt3"]
    facts, _ = params(ask, "--d", d, "--layers", layers, "--ctx", ctx, "--vocab", 50257, "--tied")
    return [*pairs, (facts["total_params"], want["gpt3"])]


@check("params.gpt3.mlp")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    d = given["d"]
    _, rows = params(ask, "--d", d, "--layers", 1, "--vocab", 50257, "--by", "weight")
    of = lambda part: sum(n for name, n in rows.items() if part in name and name.endswith("weight"))
    return [
        (of(".attn."), want["attention_weights"]),
        (of(".mlp."), want["mlp_weights"]),
        (of("wte"), want["embedding"]),
    ]


@check("params.scaling")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    total = lambda d, layers: params(ask, "--d", d, "--layers", layers)[0]["total_params"]
    (d, wide), (layers, deep) = given["d"], given["layers"]
    return [
        (total(wide, layers) / total(d, layers), want["ratio_d"]),
        (total(d, deep) / total(d, layers), want["ratio_layers"]),
    ]


@check("kv.llama3")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = ask("kvcache", "llama-3-8b", "--ctx", 8192)["facts"]
    grouped = ask("kvcache", "llama-3-8b", "--ctx", 1)["facts"]
    per_token = found["kv_bytes_per_token"]
    return [
        (per_token // 2, want["values_per_token"]),
        (per_token, want["bytes_per_token"]),
        (found["kv_bytes"], want["bytes_at_8192"]),
        (grouped["mha_bytes"], want["mha_bytes_per_token"]),
        (found["mha_bytes"] / found["kv_bytes"], want["mha_over_gqa"]),
    ]


@check("kv.gpt3")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    sizes = ("--d", given["d"], "--layers", given["layers"], "--heads", 96, "--vocab", 50257)
    found = ask("kvcache", *sizes, "--ctx", given["ctx"], "--kv-dtype", "float16")["facts"][
        "kv_bytes"
    ]
    return [(found, want["bytes"]), (found / 2**30, want["gib"])]


@check("kv.reuse")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(ask, attention={"X": given["H0"], "causal": True})
    assert found["cache_difference"] < 1e-15
    return [(found["cached_output"][2], want["z3"])]


@check("dtype.70b")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    rows = {row["dtype"]: row["bytes"] for row in ask("dtype", "--params", given["params"])["rows"]}
    return [(rows[name] / 10**9, value) for name, value in want.items()]


@check("dtype.fields")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    rows = {name: ask("dtype", name)["rows"][0] for name in want}
    return [
        ([rows[n]["sign"], rows[n]["exponent"], rows[n]["mantissa"]], bits)
        for n, bits in want.items()
    ]


@check("dtype.max")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    return [
        (ask("dtype", key.removesuffix("_max"))["rows"][0]["max"], value)
        for key, value in want.items()
    ]


@check("dtype.affine")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    levels = {}
    for name in ("int8", "int4"):
        rows = ask("dtype", name, "--affine", "--value=-1,-0.5,0.3,0.75")["rows"]
        codes = [
            row["code"] for row in rows
        ]  # the least and the largest value take the ends of the range
        levels[name] = max(codes) - min(codes) + 1
        for row in rows:
            assert abs(row["error"]) <= row["scale"] / 2 * (1 + 1e-6)
    return [(levels["int8"], want["int8_levels"]), (levels["int4"], want["int4_levels"])]


@check("dtype.training")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    rows = {
        row["part"]: row["bytes"] for row in ask("train", "gpt2", "--precision", "fp32")["rows"]
    }
    states = sum(rows[part] for part in ("weights", "gradients", "optimizer"))
    return [(states / rows["weights"], want["multiple"])]


@check("tok.gpt2")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    of = lambda text: ask("tokenize", "--tokenizer", given["encoding"], "--text", text)
    ids = [[row["id"] for row in of(text)["rows"]] for text in ("cat sat", "The weather is")]
    pieces = of("someunknownPlace")["facts"]["pieces"]
    return [
        (ids[0], want["cat sat"]),
        (ids[1], want["The weather is"]),
        (pieces, want["someunknownPlace pieces"]),
        (of("a")["facts"]["vocabulary"], want["n_vocab"]),
    ]


def _probabilities(ask: Ask, logits: list[float], temperature: float) -> list[float]:
    words = ("sample", f"--logits={','.join(map(str, logits))}", "--temperature", temperature)
    return [row["probability"] for row in ask(*words)["rows"]]


@check("sample.softmax")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    at = {t: _probabilities(ask, given["logits"], float(t)) for t in ("0.5", "1", "2")}
    return [
        *((at[t], want[t]) for t in at),
        (-math.log(at["1"][0]), want["loss_if_first_is_right"]),
    ]


@check("sample.shortlist")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    return [(_probabilities(ask, given["logits"], float(t)), ps) for t, ps in want.items()]


@check("sample.top_p")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    logits = ",".join(repr(math.log(p)) for p in given["probs"])
    return [
        (
            ask("sample", f"--logits={logits}", "--top-p", given["p"])["facts"]["n_kept"],
            want["kept"],
        )
    ]


def _shapes(ask: Ask, model: str, given: Any) -> dict[str, list[int]]:
    rows = ask("trace", model, "--batch", given["batch"], "--tokens", given["tokens"])["rows"]
    return {f"{row['op']} {row['part']}": row["shape"] for row in rows}


@check("trace.gpt2.shapes")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = _shapes(ask, "gpt2", given)
    after = [shape for name, shape in found.items() if name.startswith("residual")]
    return [
        (found["ids input_ids"], want["ids"]),
        (found["lookup wte.weight"], want["embedding"]),
        *((shape, want["after_each_block"]) for shape in after),
        (found["matmul lm_head.weight"], want["logits"]),
        (found["last token next-token logits"], want["next_token_probs"]),
    ]


@check("trace.llama3.shapes")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = _shapes(ask, "llama-3-8b", given)
    of = lambda part: next(shape for name, shape in found.items() if part in name)
    q, k, logits = of("q_proj"), of("k_proj"), of("lm_head")
    return [
        (of("embed_tokens"), want["embedding"]),
        (q, want["q"]),
        (k, want["k"]),
        (of("v_proj"), want["v"]),
        (q[1] // k[1], want["queries_per_kv_head"]),
        ([of("post_attention_layernorm")[-1], of("up_proj")[-1], of("down_proj")[-1]], want["mlp"]),
        (logits, want["logits"]),
        (math.prod(logits), want["logit_values"]),
    ]


@check("trace.attention.identity")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    whole = hand(ask, attention={"X": given["X"]})["matrices"]
    masked = hand(ask, attention={"X": given["X"], "causal": True})["matrices"]
    return [
        (masked["weights"], want["masked_weights"]),
        *((whole[n], v) for n, v in want.items() if n in whole),
    ]


@check("trace.attention.query")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    keys = {"Q": [given["q"]], "K": given["K"], "V": given["K"]}
    seen = {"Q": [given["q"]], "K": given["K"][:2], "V": given["K"][:2], "causal": True}
    whole = hand(ask, attention=keys)["matrices"]
    masked = hand(ask, attention=seen)["matrices"]["weights"][0]
    unscaled = hand(ask, attention={**seen, "scaled": False})["matrices"]["weights"][0]
    return [
        (whole["scores"][0], want["scores"]),
        (whole["scaled"][0], want["scaled"]),
        ([*masked, 0.0], want["weights"]),
        ([*unscaled, 0.0], want["weights_unscaled"]),
    ]


@check("trace.permutation")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    turned = {name: rows[::-1] for name, rows in given.items()}
    there, back = (hand(ask, attention=x)["matrices"]["output"] for x in (given, turned))
    return [(there, want["out"]), (back[::-1], want["out"])]


@check("trace.layernorm")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    return [
        (hand(ask, layernorm=[int(c) for c in row])["matrices"]["normalised"][0], y)
        for row, y in want.items()
    ]


@check("trace.cosine")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(ask, cosine=given)
    return [(found[key], value) for key, value in want.items()]


@check("trace.gelu")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    return [(hand(ask, gelu=given["x"])["matrices"]["GELU, tanh"][0], want["y"])]


@check("toy.forward")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    facts = ask("trace", "--toy")["facts"]
    return [
        (facts["matrices"]["weights"], want["attention"]),
        (facts["p_target"], want["p_target"]),
        (facts["loss"], want["loss"]),
        (facts["ln_vocab"], want["ln_V"]),
        (facts["next"], want["argmax_last"]),
        (facts["matrices"]["probabilities"][2][given["vocab"].index("mat")], want["p_mat_last"]),
    ]


@check("toy.std")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    facts = ask("trace", "--toy", "--std", given["std"])["facts"]
    assert facts["loss"] < facts["ln_vocab"]
    return [(facts["loss"], want["loss"])]


@check("toy.gradient")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    facts = ask("trace", "--toy", "--backward")["facts"]
    rows = [(facts["matrices"]["dL/dlogits"][i], want[f"row{i}"]) for i in range(3)]
    return [*rows, *((s, want["row_sum"]) for s in facts["row_sums"])]


@check("toy.adamw")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    facts = ask("trace", "--toy", "--backward")["facts"]
    return [
        (
            [math.copysign(1, x) for x in facts["matrices"]["dL/dhead"][1]],
            want["sign_of_gradient_cat"],
        ),
        (facts["matrices"]["change"][1], want["delta_cat"]),
        (facts["loss_after"], want["loss_after"]),
    ]


@check("toy.share")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    ranks = given["batch_tokens"] // 2048
    facts = ask(
        "train", "gpt2", "--tokens", 2048, "--dp", ranks, "--tokens-of-interest", given["tokens"]
    )["facts"]
    assert facts["tokens_per_step"] == given["batch_tokens"]
    return [(facts["share_of_interest"], want["share"])]


@check("residual.gradient")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(ask, residual={"slope": 0.8, "layers": [int(n) for n in want]})
    with_shortcut = [row[2] for row in found["matrices"]["layers"]]
    assert with_shortcut == [pytest.approx(1.8 ** int(n)) for n in want]
    return [(found[n], value) for n, value in want.items()]


@check("residual.experiment")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = ask("trace", "--by-hand", "shortcuts")["facts"]
    assert found["first_over_last_without"] == pytest.approx(
        want["first_over_last_without"], abs=1e-5
    )
    return [(found["without"], want["without"]), (found["with"], want["with"])]


@check("neuron.threshold")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(
        ask,
        neuron={"x": [0.45, 0.46], "weights": [[0.2, 0.6], [0.5, 0.5]], "thresholds": [0.3, 0.5]},
    )
    return [
        (found["sums"], [want["sum_first"], want["sum_second"]]),
        (found["fires"], [want["fires_first"], want["fires_second"]]),
    ]


@check("gradient.step")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(ask, **{"gradient-step": {"w": 0.5, "rate": 0.1, "gradients": [0.2, -0.2]}})
    return [(found["after"], [want["g=0.2"], want["g=-0.2"]])]


@check("position.sinusoid")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(ask, positions={"d": given["d"], "positions": [int(p) for p in want]})["matrices"][
        "encoding"
    ]
    return [(found, list(want.values()))]


@check("dropout.scale")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(ask, dropout={"p": given["p"], "x": [2.0] * 60})
    kept = [y for y in found["matrices"]["output"][0] if y]
    assert 40 < len(kept) < 60
    return [(found["scale"], want["scale"]), (kept, [2 * want["scale"]] * len(kept))]


@check("matmul.count")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    found = hand(ask, matmul={key.lower(): n for key, n in given.items()})
    return [(found["multiplications"], want["multiplications"]), (found["flop"], want["flop"])]


@check("allreduce.step")
def _(ask: Ask, given: Any, want: Any) -> list[tuple[Any, Any]]:
    words = ("train", "gpt2", "--precision", "bf16", "--dp", given["ranks"])
    found = ask(*words, "--rank-seconds", ",".join(map(str, given["compute_s"])))
    gradients = next(row["bytes"] for row in found["rows"] if row["part"] == "gradients")
    return [
        (gradients, given["gradient_bytes"]),
        (found["facts"]["traffic"][0]["bytes"], want["bytes_per_rank"]),
        (found["facts"]["compute_s"], want["compute_part_s"]),
    ]


def test_a_figure_without_the_last_norm(cli: Callable[..., Ran]) -> None:
    """A common figure leaves the final LayerNorm away: ``--expect`` says what the 1,536 are."""
    want = NUMBERS["params.gpt2.no_final_ln"]["expected"]["total"]
    ran = cli("params", "gpt2", "--expect", want)
    assert ran.code == 1 and "1,536 more, which is ln_f (2d)" in ran.err


def test_heads_divide_the_width(cli: Callable[..., Ran], ask: Ask) -> None:
    """768 over 12 heads are 64 each; a count that does not divide is refused."""
    x = NUMBERS["heads.split"]
    sizes = ("--d", x["inputs"]["d"], "--layers", 1, "--vocab", 100)
    rows = ask("trace", *sizes, "--heads", x["inputs"]["heads"])["rows"]
    assert {row["op"]: row["shape"] for row in rows}["scores"][1] == x["inputs"]["heads"]
    config = ask("kvcache", *sizes, "--heads", x["inputs"]["heads"], "--ctx", 1)
    assert config["symbols"]["d_h"]["value"] == x["expected"]["head_dim"]
    for heads in x["expected"]["refused_heads"]:
        ran = cli("trace", *sizes, "--heads", heads)
        assert ran.code == 2 and f"{heads} heads do not divide" in ran.err


def test_every_example_is_asserted() -> None:
    assert len(NUMBERS) == 42
    assert set(CHECKS) | {"params.gpt2.no_final_ln", "heads.split"} == set(NUMBERS)


@pytest.mark.parametrize("name", CHECKS)
def test_number(ask: Ask, name: str) -> None:
    x = NUMBERS[name]
    pairs = CHECKS[name](ask, x["inputs"], x["expected"])
    assert pairs
    for found, want in pairs:
        if isinstance(want, str) or (isinstance(want, list) and isinstance(want[0], str)):
            assert found == want
        else:
            assert np.allclose(
                np.array(found, float), np.array(want, float), rtol=0, atol=x.get("tolerance", 0)
            )
