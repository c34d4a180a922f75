"""One fact, one room: what every command says of the same weights, engines and options agrees."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from llmcalc.api import load
from llmcalc.engines import ALL, ENGINES, choose, find, known_rules
from llmcalc.formats.element import dtype
from llmcalc.formats.file_type import BASES
from llmcalc.formats.scheme import SCHEMES
from llmcalc.formats.stored import named, stored, stored_bytes
from llmcalc.questions.load import Settings
from llmcalc.questions.recipe import Recipe
from llmcalc.questions.speed import weight_reads
from llmcalc.questions.training import train
from tests.conftest import Ran

ROOT = Path(__file__).parents[1] / "llmcalc"
DOCS = Path(__file__).parents[1] / "docs"
MODELS = (
    *("gpt2", "llama-3-8b", "llama-3.2-1b", "qwen3-30b-a3b", "gpt-oss-20b"),
    *("mixtral-8x7b", "deepseek-v2-lite", "gemma-2-9b", "falcon-11b", "phi-3-mini-4k"),
)
"""Tied and untied, transposed, routed one by one and stacked, latent, fused: ten ways to lie in a
file.
"""
FORMATS = ("float32", "bfloat16", "float8_e4m3fn", *SCHEMES, "int8", "int4", "Q8_0", "Q4_K_M")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", MODELS)
def test_every_command_counts_the_same_bytes(cli: Callable[..., Ran], name: str, form: str) -> None:
    """``fit``, ``dtype``, ``train`` and ``speed`` on one model in one format, byte for byte."""
    said = load(name)
    anatomy, wide = said.anatomy, said.model.wide
    chosen = named(form, wide)
    words = ("fit", name, "--weights", form, "--device-memory", "9TiB", "--ctx", 64, "--json")
    fit = json.loads(cli(*words).out)["rows"][0]
    held = json.loads(cli("dtype", form, "--model", name, "--json").out)["facts"]
    assert fit["part"] == "weights" and fit["bytes"] == held["bytes"] == stored_bytes(
        anatomy, chosen
    )
    assert said.weight_bytes(form) == fit["bytes"]

    recipe = Recipe(like="bf16", lora_rank=1, lora_targets=("all",), base=chosen)
    assert train(recipe, anatomy).part("weights") == fit["bytes"]

    # every token passes every expert: all but the lookups is read, a tied head with its table
    tied = {w.tied_to for w in anatomy.weights if w.tied_to}
    lookups = sum(
        int(p.n_bytes)
        for p in stored(anatomy, chosen)
        if p.weight.op == "lookup" and p.weight.name not in tied
    )
    assert weight_reads(anatomy, chosen, tokens=10**9) == fit["bytes"] - lookups


@pytest.mark.parametrize("name", MODELS)
def test_params_says_what_the_formats_say(cli: Callable[..., Ran], name: str) -> None:
    said = load(name)
    for kind in ("float32", "bfloat16"):
        words = ("params", name, "--dtype", kind, "--by", "weight", "--json")
        rows = json.loads(cli(*words).out)["rows"]
        pieces = stored(said.anatomy, named(kind, said.model.wide))
        assert sum(r["bytes"] for r in rows) == sum(
            int(p.n_bytes) for p in pieces if p.weight.counted
        )


def test_numbers_that_two_tables_had_wrong(cli: Callable[..., Ran]) -> None:
    """openai/gpt-oss-20b's index: 13,761,264,768 bytes; of them a token reads what it passes."""
    words = ("speed", "gpt-oss-20b", "--device", "h100", "--ctx", 8192, "--batch", 1, "--json")
    assert json.loads(cli(*words).out)["rows"][0]["weight_bytes"] == 3_708_083_328
    words = ("train", "gpt-oss-20b", "--weights", "mxfp4", "--lora-rank", 8, "--like", "bf16")
    rows = json.loads(cli(*words, "--json").out)["rows"]
    assert rows[0]["part"] == "weights" and rows[0]["bytes"] == 13_761_264_768
    words = ("fit", "gpt-oss-20b", "--device", "h100", "--ctx", 8192, "--json")
    shares = json.loads(cli(*words).out)["facts"]["degree_bytes"]["expert"]
    assert shares["32"] == 3_913_323_648
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert load("gpt2").anatomy.d_ff == 3072 and load("gpt-oss-20b").anatomy.d_ff == 2880
    words = ("fit", "gpt-oss-20b", "--device", "h100", "--ctx", 8192, "--engine", "vllm")
    asked = (*words, "--max-seqs", 1, "--batched-tokens", 32768, "--json")
    part = json.loads(cli(*asked).out)["rows"][1]
    assert part["part"] == "activations" and part["bytes"] == 32768 * 2 * (3 * 2880 + 4 * 2880)


def test_a_window_survives_as_many_batches_as_its_version_flies() -> None:
    """vLLM to 0.26 has one batch in flight: 2,048 - 1 + 8,192 tokens in pages of 16, and
    one more; from 0.27 two.
    """
    answer = load("recurrentgemma-2b").kvcache(ctx=131072, engine="vllm@0.10")
    rows = {row.kind: row for row in answer.rows}
    assert rows["sliding"].tokens == (-(-(2047 + 8192) // 16) + 1) * 16
    assert answer.rules.startswith("vLLM 0.9 to 0.11")
    newest = load("recurrentgemma-2b").kvcache(ctx=131072, engine="vllm")
    rows = {row.kind: row for row in newest.rows}
    assert rows["sliding"].tokens == (-(-(2047 + 2 * 8192) // 16) + 1) * 16


def test_degrees_of_a_stage_have_their_head() -> None:
    """A tied head is a copy on the last stage: two stages hold more than the whole."""
    from llmcalc.parallel import stage

    anatomy = load("llama-3.2-1b").anatomy
    form = named("bfloat16", dtype("bfloat16"))
    both = [int(stored_bytes(stage(anatomy, 2, i), form)) for i in range(2)]
    assert sum(both) == int(stored_bytes(anatomy, form)) + 2 * 128256 * 2048


# guards: a new format, engine, version or option that is not whole fails here


@pytest.mark.parametrize("name", SCHEMES)
def test_a_scheme_is_whole(name: str) -> None:
    """A size, a formula that it is known by, a place in the documents, settings in ``packing``
    alone.
    """
    scheme = SCHEMES[name]
    assert scheme.name == name and scheme.formula and int(scheme.n_bytes(4096, 4096)) > 0
    assert name in (DOCS / "dtype.md").read_text(), f"docs/dtype.md does not name {name}"
    assert named(name, dtype("bfloat16")).name == name


def test_a_file_type_is_whole() -> None:
    text = (DOCS / "dtype.md").read_text().lower()
    for name, base in BASES.items():
        assert dtype(base).size > 0
        family = re.match(r"[a-z]+\d*", name.lower())
        assert family and family[0] in text, name


@pytest.mark.parametrize("name", ENGINES)
def test_an_engine_is_whole(cli: Callable[..., Ran], name: str) -> None:
    """Versions without a gap, each asked for by a name of its own, listed, with a source,
    documented.
    """
    engine = find(name)
    for older, newer in zip(engine.versions, engine.versions[1:], strict=False):
        assert older.until is not None and newer.since is not None and older.until < newer.since
        assert older.asked_as and choose(f"{name}@{older.asked_as}").rules is older
    assert choose(name).rules is engine.newest
    listed = json.loads(cli("list", "engines", "--json").out)["rows"]
    rows = [row for row in listed if row["engine"].partition("@")[0] == name]
    assert len(rows) == len(engine.versions) and all(row["source"] for row in rows)
    page = (DOCS / "kvcache.md").read_text() + (DOCS / "fit.md").read_text()
    assert name in page
    for rules in engine.versions:
        if rules.asked_as:
            assert f"{name}@{rules.asked_as}" in page, f"{name}@{rules.asked_as} is not documented"
    assert all(hasattr(Settings(), o) or o in ("max_seqs", "gpu_layers") for o in engine.options)


def test_names_of_engines_are_one_to_one() -> None:
    names = [n for e in ALL.values() for n in (e.name, *e.aliases)]
    assert len(names) == len(set(names))
    assert len({name for name, _ in known_rules()}) == len(known_rules())


def test_every_setting_belongs_to_an_engine() -> None:
    owned = {option for e in ENGINES.values() for option in e.options}
    for name in Settings.__dataclass_fields__:
        assert name in owned, f"no engine reads {name}"


def sources() -> list[tuple[Path, str]]:
    return [(p.relative_to(ROOT), p.read_text()) for p in sorted(ROOT.rglob("*.py"))]


def test_facts_of_a_part_are_asked_of_the_part() -> None:
    """Orientation, routing, stack and tower are properties: nobody else spells them out."""
    spelled = re.compile(
        r"\.transposed\b|experts > 1|experts == 1|\"\{(?:layer|expert)\}\" (?:not )?in "
        r"|role\.startswith\(\(?[\"*](?:vision|audio)"
    )
    builders = ("families", "blocks.py", "anatomy.py")
    for path, text in sources():
        if path.parts[0] in builders or path.name in ("anatomy.py", "blocks.py"):
            continue
        found = [line for line in text.splitlines() if spelled.search(line)]
        assert not found, f"{path}: {found}"


def test_no_engine_is_told_by_its_name_outside_of_its_room() -> None:
    names = {n for e in ALL.values() for n in (e.name, *e.aliases)}
    names -= {"formula", "transformers", "hf"}  # words of other things too
    for path, text in sources():
        if path.parts[0] in ("engines", "sources"):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Compare):
                words = [c.value for c in ast.walk(node) if isinstance(c, ast.Constant)]
                assert not names & {w for w in words if isinstance(w, str)}, f"{path}:{node.lineno}"


def test_records_are_made_by_keyword() -> None:
    """No call of a record has more than five positional arguments."""
    made = re.compile(r"^[A-Z]\w+$")
    for path, text in sources():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and made.match(ast.unparse(node.func).rsplit(".", 1)[-1]):
                assert len(node.args) <= 5, f"{path}:{node.lineno} {ast.unparse(node.func)}"
