"""What llama.cpp allocates for a GGUF, from its metadata and its table of tensors alone.

Golden values: llama_cpp_allocations.json holds the metadata and tensors of headers of 120
architectures, and what llama.cpp (llama-cpp-python 0.3.36, ggml 0c1e570, CPU build) said of each:
``n_params``, bytes of the model, and for several settings the bytes of every cache and recurrent
state together, or that it refuses them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcalc.dims import SYMBOLS, Dim
from llmcalc.engines.cache import Load
from llmcalc.errors import InputError, LlmcalcError
from llmcalc.formats.element import dtype
from llmcalc.formats.stored import named, stored_bytes
from llmcalc.questions.kvcache import kvcache
from llmcalc.questions.params import parameters
from llmcalc.questions.weights import compared, format_of
from llmcalc.sources import gguf, gguf_layers, resolve
from llmcalc.sources.header import Header, Stored
from llmcalc.sources.model import Model
from tests.formulas import evaluate

FILES = json.loads((Path(__file__).parent / "llama_cpp_allocations.json").read_text())
NAMES = {"f16": "float16", "f32": "float32", "bf16": "bfloat16"}


def header(name: str, **changes: Any) -> Header:
    """The header of a recipe, as the reader gives it; ``changes`` go into the metadata."""
    recipe = FILES[name]
    tensors: dict[str, Stored] = {}
    for tail, kind, shape, ranges in recipe["tensors"]:
        elements = 1
        for n in shape:
            elements *= n
        stored = Stored(kind, tuple(shape), dtype(kind).bytes_for(elements), name)
        layers = [i for first, last in ranges for i in range(first, last + 1)]
        for place in [tail.format(i) for i in layers] or [tail]:
            tensors[place] = stored
    metadata = {**recipe["metadata"], **changes}
    metadata = {k: v for k, v in metadata.items() if v is not None}
    return Header("gguf", tensors, metadata)


def model(name: str, **changes: Any) -> Model:
    """The model of a recipe, as a file on this machine gives it."""
    found = header(name, **changes)
    return Model(name, f"GGUF file {name}", gguf.to_config(found), found)


def load(case: list[Any]) -> Load:
    """A context as llama.cpp is started with: ``-c`` is shared by all its slots."""
    n_ctx, slots, unified, keys, values, full, flash, ubatch, _ = case
    return Load(
        context=Dim(n_ctx if unified else n_ctx // slots, "context"),
        batch=Dim(slots, "batch"),
        key_dtype=dtype(NAMES.get(keys, keys)),
        value_dtype=dtype(NAMES.get(values, values)),
        state_dtype=dtype("float32"),
        ubatch=ubatch,
        unified=bool(unified),
        swa_full=bool(full),
        flash_attention=bool(flash),
    )


def answer(found: Model, case: list[Any]) -> int | str:
    """Our bytes, or that it is refused."""
    try:
        return int(kvcache(found.anatomy, load=load(case), engine="llama.cpp").kv_bytes)
    except InputError:
        return "refused"


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_allocation(name: str) -> None:
    found = model(name)
    for case in FILES[name]["cases"]:
        assert answer(found, case) == case[-1], case


@pytest.mark.parametrize("name", sorted(FILES))
def test_parameters_and_bytes(name: str) -> None:
    found = header(name)
    assert found.elements == FILES[name]["n_params"]
    assert found.n_bytes == FILES[name]["model_bytes"]
    assert int(stored_bytes(model(name).anatomy, format_of(model(name)))) == found.n_bytes
    counted = gguf_layers.anatomy(found).weights
    assert sum(int(w.params) for w in counted) == FILES[name]["n_params"]


@pytest.mark.parametrize("name", [n for n in sorted(FILES) if model(n).raw is not None])
def test_a_family_counts_what_the_file_holds(name: str) -> None:
    found = model(name)
    assert found.header is not None
    tables = sum(s.elements for t, s in found.header.tensors.items() if t.startswith("rope_"))
    assert parameters(found.anatomy) == FILES[name]["n_params"] - tables


@pytest.mark.parametrize("name", [n for n in sorted(FILES) if model(n).raw is not None])
def test_a_family_promises_what_the_file_holds(name: str) -> None:
    found = model(name)
    assert found.header is not None
    result = compared(found, found.header)
    assert result.differences == ()


def test_the_general_rule_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the table nine of ten cases are still right, and none of the others is a number."""
    monkeypatch.setattr(gguf_layers, "LOADERS", {})
    answers = [
        (answer(model(name), case), case[-1]) for name in FILES for case in FILES[name]["cases"]
    ]
    right = [got for got, wanted in answers if got == wanted]
    wrong = [(got, wanted) for got, wanted in answers if got != wanted and got != "refused"]
    assert not wrong
    assert len(right) >= 0.9 * len(answers)


@pytest.mark.parametrize(
    ("preset", "context", "flash", "wanted"),
    [
        ("mistral-7b-v0.1", 32768, True, 4294967296),
        ("starcoder2-3b", 32768, True, 1006632960),
        ("starcoder2-15b", 32768, True, 2684354560),
        ("phi-3-mini-4k", 4096, True, 1610612736),
        ("phi-3-mini-4k", 32768, True, 12884901888),
        ("phi-3-medium-4k", 32768, True, 6710886400),
        ("phi-mini-moe", 32768, True, 4294967296),
        ("minicpm3-4b", 4096, True, 3250585600),
        ("gemma-4-e2b", 4096, False, 44040192),
        ("mimo-v2-flash", 12288, False, 549715968),
        ("mimo-v2-flash", 12288, True, 436469760),
    ],
)
def test_by_name(preset: str, context: int, flash: bool, wanted: int) -> None:
    """What llama.cpp allocates for a file of these sizes; the same program as above."""
    case = [context, 1, 0, "f16", "f16", 0, int(flash), 512, wanted]
    got = kvcache(resolve(preset).anatomy, load=load(case), engine="llama.cpp")
    assert int(got.kv_bytes) == wanted


def test_an_olmo_3_file_slides_in_three_of_four_layers() -> None:
    # 32 layers of 32 heads of 128, window 4,096: 9.50 GiB at 65,536 tokens (llama.cpp's log)
    metadata = {
        "general.architecture": "olmo2",
        "olmo2.block_count": 32,
        "olmo2.embedding_length": 4096,
        "olmo2.attention.head_count": 32,
        "olmo2.attention.head_count_kv": 32,
        "olmo2.attention.sliding_window": 4096,
        "olmo2.attention.sliding_window_pattern": [i % 4 != 3 for i in range(32)],
    }
    slides = [len(m.layers.indices) for m in gguf_layers.mixers(Header("gguf", {}, metadata))]
    assert sorted(slides) == [8, 24]


def test_parts_that_are_only_counted_are_not_explained() -> None:
    with pytest.raises(InputError, match="only counted"):
        list(_walked(model("apertus.b")))
    # which tensors a quantiser leaves alone is a rule of the architecture: none is guessed here
    for name in ("q4_k_m", "fp8", "gptq"):
        with pytest.raises(InputError, match=f"(?i)stay wide in {name} is not"):
            stored_bytes(model("chameleon.a").anatomy, named(name, dtype("float16")))
    assert int(stored_bytes(model("apertus.b").anatomy, named("float16", dtype("float16")))) == (
        2 * FILES["apertus.b"]["n_params"]
    )


@pytest.mark.parametrize("name", sorted(FILES))
def test_widths_are_those_of_the_metadata(name: str) -> None:
    """Roles are told by names; the widths that follow are the file's own."""
    metadata = FILES[name]["metadata"]
    found = model(name).anatomy
    assert found.d_model == metadata[f"{metadata['general.architecture']}.embedding_length"]
    table = next(t for t in FILES[name]["tensors"] if t[0] == "token_embd.weight")
    assert found.vocab == table[2][0]


def _walked(found: Model) -> Iterator[Any]:
    from llmcalc.questions.trace import ask, walk

    return walk(found.anatomy, ask(1, 8))


def _key(name: str) -> list[str]:
    return [k for k in FILES[name]["metadata"] if k != "general.architecture"]


VALUES = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**64),
    st.text(max_size=8),
    st.floats(),
    st.booleans(),
    st.lists(st.one_of(st.integers(-5, 2**40), st.text(max_size=3), st.booleans()), max_size=9),
    st.just(gguf.Skipped(10**6)),
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_hostile_metadata_is_refused_in_a_sentence(data: st.DataObject) -> None:
    """Any value for any key: an answer or an error of ours, never anything else."""
    name = data.draw(st.sampled_from(sorted(FILES)))
    changes = data.draw(st.dictionaries(st.sampled_from(_key(name)), VALUES, max_size=3))
    try:
        answer(model(name, **changes), FILES[name]["cases"][0])
    except LlmcalcError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 400


def test_what_is_too_long_for_any_model_is_no_number() -> None:
    """An array that was walked over is known by its length alone, which is not a size."""
    with pytest.raises(LlmcalcError, match="1,000,000 values"):
        model("apertus.b", **{"apertus.attention.head_count_kv": gguf.Skipped(10**6)}).anatomy  # noqa: B018
    with pytest.raises(LlmcalcError, match="num_loops"):
        model("nanbeige.b", **{"nanbeige.num_loops": 4000}).anatomy  # noqa: B018


@pytest.mark.parametrize("name", sorted(FILES))
def test_every_formula_gives_its_number(name: str) -> None:
    """A name has one value in all rows, so that a reader who fills them in gets the bytes."""
    case = FILES[name]["cases"][0]
    if case[-1] == "refused":
        return
    found = kvcache(model(name).anatomy, load=load(case), engine="llama.cpp")
    together: dict[str, int] = {}
    for row in found.rows:
        for size in (row.kv_bytes, row.state_bytes):
            values = {SYMBOLS.get(long, long): value for long, value in size.sizes.items()}
            assert evaluate(size.formula, values) == int(size), size.formula
            for symbol, value in values.items():
                assert together.setdefault(symbol, value) == value, symbol
