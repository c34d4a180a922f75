"""What is printed is what is counted: formulas, names, roles, over every preset."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import llmcalc
from llmcalc.cli.options.model import OutputOptions
from llmcalc.cli.output.view import to_data
from llmcalc.cli.params.command import of_model
from llmcalc.dims import Dim
from llmcalc.questions.params import GROUPS, buffers, parameters, stored
from llmcalc.sources import presets, resolve
from tests.formulas import evaluate

TOTALS = Path(__file__).parent / "totals.json"
TINY = Path(__file__).parent / "tiny.json"
PUBLISHED = Path(__file__).parent / "published.json"
ROLES = {
    *(
        "embed.token",
        "embed.position",
        "embed.type",
        "embed.layer",
        "embed.join",
        "norm",
        "norm.gate",
        "head",
        "head.join",
    ),
    *(
        "attn.q",
        "attn.k",
        "attn.v",
        "attn.o",
        "attn.qkv",
        "attn.kv",
        "attn.q_norm",
        "attn.k_norm",
        "attn.sinks",
        "attn.gate",
    ),
    *(
        "attn.q_a",
        "attn.q_b",
        "attn.q_a_norm",
        "attn.kv_a",
        "attn.kv_a_norm",
        "attn.kv_b",
        "attn.o_a",
        "attn.compress",
    ),
    *(
        "attn.index_q",
        "attn.index_k",
        "attn.index_norm",
        "attn.index_weights",
        "attn.pos",
        "attn.join",
        "attn.bias",
        "attn.r",
    ),
    *(
        "cross.q",
        "cross.k",
        "cross.v",
        "cross.o",
        "cross.kv",
        "cross.gate",
        "mlp.gate",
        "mlp.up",
        "mlp.down",
        "mlp.gate_up",
    ),
    *(
        "mlp.act",
        "mlp.scale",
        "mlp.latent_in",
        "mlp.latent_out",
        "router",
        "ssm.in",
        "ssm.conv",
        "ssm.x",
        "ssm.dt",
        "ssm.a",
        "ssm.d",
    ),
    *(
        "ssm.norm",
        "ssm.out",
        "residual",
        "adapter",
        "altup",
        "laurel",
        "ple.gate",
        "ple.up",
        "ple.in",
        "projector",
        "conv",
        "mix",
    ),
    *("pooler", "prompt", "position", "clip", "state"),
}


@pytest.mark.parametrize("name", presets.names())
def test_every_printed_formula_evaluates_to_its_number(name: str) -> None:
    view = of_model(resolve(name), "part", False, None, OutputOptions())
    symbols = {symbol: size for symbol, (_, size) in view.legend().items()}
    seen = 0
    for _, value in view.dims():
        assert evaluate(value.formula, symbols) == value, value.formula
        seen += 1
    assert seen >= 8
    data = to_data(view)
    assert data["facts"]["total_params"] == sum(row["params"] for row in data["rows"])


@pytest.mark.parametrize("name", presets.names())
def test_names_are_unique_roles_known_and_nothing_lost_a_formula(name: str) -> None:
    a = resolve(name).anatomy
    names = [n for w in a.weights for n in w.names()]
    assert len(names) == len(set(names))
    for w in a.weights:
        assert w.role in ROLES or w.role.split(".")[0] in ("vision", "audio"), w.role
        assert all(isinstance(s, Dim) for s in w.shape), w.name
        assert all(s > 0 for s in w.shape) or w.shape == (), w.name
        assert w.layers.indices, f"{w.name} stands in no layer"
    owners = {n for w in a.weights if not w.tied_to for n in w.names()}
    assert {w.tied_to for w in a.weights if w.tied_to} <= owners


@pytest.mark.parametrize("name", presets.names())
def test_every_grouping_sums_to_the_total(name: str) -> None:
    a = resolve(name).anatomy
    for group in GROUPS.values():
        assert sum(g.params for g in group(a)) == parameters(a)
    assert stored(a) == parameters(a) + buffers(a)


def test_the_index_of_modules_is_what_the_families_register() -> None:
    from llmcalc.families import registered
    from llmcalc.families.index import MODULES

    found = {name: module for module, names in MODULES.items() for name in names}
    assert registered() == found, "run scripts/family_index.py"


def test_every_family_owes_a_total_from_outside() -> None:
    """Each function has a model type whose total somebody else published or built.

    The total of a whole is also one of the model inside it, which is counted with it.
    """
    from llmcalc.families import families, registered

    configs = [presets.load(name) for name in json.loads(TOTALS.read_text())]
    for path in (TINY, PUBLISHED):
        configs += [case["config"] for case in json.loads(path.read_text()).values()]
    configs += [value for c in configs for value in c.values() if isinstance(value, dict)]
    golden = {c["model_type"] for c in configs if c.get("model_type")}
    functions: dict[object, list[str]] = {}
    for name, function in families().items():
        functions.setdefault(function, []).append(name)
    owing = [names for names in functions.values() if not golden & set(names)]
    assert not owing, f"no total from outside for {owing}"
    assert set(registered()) == set(families())


def test_every_row_of_defaults_serves_a_family() -> None:
    """A row is a registered type, one that a family names, or one inside a row that is."""
    from llmcalc.families import families

    folder = Path(llmcalc.__file__).parent / "families"
    rows = json.loads((folder / "defaults.json").read_text())
    code = "".join(path.read_text() for path in folder.rglob("*.py"))
    served = {name for name in rows if name in families() or f'"{name}"' in code}
    before = 0
    while before != len(served):
        before = len(served)
        inside = [v for n in served for k, v in rows[n].items() if k.endswith("model_type")]
        served |= {name for name in inside if name in rows}
    assert served == set(rows)
