"""Hypothesis strategies for files that look right and hold what no honest file does."""

from __future__ import annotations

import json
import struct
from functools import cache
from typing import Any

from hypothesis import strategies as st

from llmcalc.config import SIZES
from llmcalc.formats.element import ALIASES, DTYPES, GGUF_DTYPES, find_dtype
from llmcalc.sources.gguf import _MODEL_TYPES
from tests.fuzz import ggufs
from tests.fuzz.hostile import HOSTILE, written
from tests.fuzz.seeds import families

texts = st.text(max_size=12) | st.sampled_from([v for v in HOSTILE if isinstance(v, str)])
plain = st.none() | st.booleans() | st.integers() | st.integers(-4, 600) | st.floats() | texts
values = st.sampled_from(HOSTILE) | st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)
_KEYS = sorted({key for spellings in SIZES.values() for key in spellings})
_MORE = (
    "layer_types",
    "text_config",
    "vision_config",
    "quantization_config",
    "architectures",
    "model_type",
    "dtype",
)


@cache
def _configs() -> tuple[dict[str, Any], ...]:
    return tuple(json.loads(seed) for seed in families())


@st.composite
def configs(draw: st.DrawFn) -> bytes:
    """A real family's config with up to four of its keys, or of others, made hostile; at times one
    level down.
    """
    raw = dict(draw(st.sampled_from(_configs())))
    keys = st.sampled_from(sorted(raw)) | st.sampled_from((*_KEYS, *_MORE))
    for key in draw(st.lists(keys, min_size=1, max_size=4, unique=True)):
        inside = raw.get(key)
        if isinstance(inside, dict) and inside and draw(st.booleans()):
            raw[key] = {**inside, draw(st.sampled_from(sorted(inside))): draw(values)}
        elif isinstance(inside, list) and inside and draw(st.booleans()):
            at = draw(st.integers(0, len(inside) - 1))
            raw[key] = [*inside[:at], draw(values), *inside[at + 1 :]]
        else:
            raw[key] = draw(values)
    return written(raw)


_names = (
    st.sampled_from(("w", "model.layers.0.mlp.up_proj.weight", "a.bias", "__metadata__")) | texts
)
_shapes = st.lists(st.integers(0, 5), max_size=3) | st.lists(
    st.sampled_from((0, 1, 2**31, 2**62, 2**63)), max_size=70
)
_dtypes = st.sampled_from(("F32", "BF16", "F8_E4M3", "I64", "F4", "BOOL")) | st.sampled_from(
    sorted({*DTYPES, *ALIASES})
)


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A safetensors file whose offsets fit its shapes, but for a hostile value here and there."""
    entries: dict[str, Any] = {}
    end = 0
    for name in draw(st.lists(_names, max_size=4, unique=True)):
        kind, shape = draw(_dtypes), draw(_shapes)
        form, elements = find_dtype(kind), 1
        for size in shape:
            elements *= size
        begin, end = end, end + (form.bytes_for(elements) if form and elements < 1000 else 4)
        entry: dict[str, Any] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
        if draw(st.integers(0, 5)) == 0:
            entry[draw(st.sampled_from(("dtype", "shape", "data_offsets", "more")))] = draw(values)
        entries[name] = entry if draw(st.integers(0, 9)) else draw(values)
    if draw(st.booleans()):
        entries["__metadata__"] = draw(st.dictionaries(texts, texts, max_size=3) | values)
    text = written(entries)
    length = len(text) if draw(st.integers(0, 9)) else draw(st.integers(0, 2**64 - 1))
    data = end if draw(st.integers(0, 5)) else draw(st.integers(0, 4096))
    return struct.pack("<Q", length) + text + b"\0" * min(data, 100_000)


_ARCHITECTURES = (*_MODEL_TYPES, "bert", "")
_TENSORS = (
    "token_embd.weight",
    "output.weight",
    "blk.0.attn_output.bias",
    "blk.0.attn_q.weight",
    "rope_freqs.weight",
)
_TOKENIZER = (
    "model",
    "pre",
    "tokens",
    "scores",
    "token_type",
    "merges",
    "unknown_token_id",
    "bos_token_id",
)
_numbers = st.integers(0, 64) | st.integers(0, 2**64 - 1) | st.floats(width=32)


@st.composite
def _typed(draw: st.DrawFn, depth: int = 0) -> ggufs.Value:
    """A type of GGUF and a value that it can hold."""
    kind = draw(st.sampled_from((4, 4, 5, 6, 7, 10, 12, ggufs.STRING, ggufs.ARRAY, 255)))
    if kind == ggufs.STRING:
        return kind, draw(texts)
    if kind != ggufs.ARRAY or depth > 4:
        return kind, draw(_numbers)
    item = draw(st.sampled_from((4, 5, 6, ggufs.STRING, ggufs.STRING, ggufs.ARRAY)))
    if item == ggufs.ARRAY:
        inner = draw(st.lists(_typed(depth + 1), max_size=3))
        return kind, (item, [v for k, v in inner if k == ggufs.ARRAY])
    return kind, (item, draw(st.lists(texts if item == ggufs.STRING else _numbers, max_size=5)))


def _tokenizer(draw: st.DrawFn) -> list[tuple[bytes, ggufs.Value]]:
    """A small vocabulary that is right, before one of its keys is made wrong."""
    tokens = draw(st.lists(texts, min_size=1, max_size=8))
    return [
        (b"tokenizer.ggml.model", (ggufs.STRING, draw(st.sampled_from(("llama", "gpt2", "bert"))))),
        (b"tokenizer.ggml.tokens", (ggufs.ARRAY, (ggufs.STRING, tokens))),
        (
            b"tokenizer.ggml.scores",
            (ggufs.ARRAY, (6, draw(st.lists(st.floats(width=32), max_size=8))[: len(tokens)])),
        ),
        (
            b"tokenizer.ggml.token_type",
            (ggufs.ARRAY, (5, draw(st.lists(st.integers(0, 7), max_size=9)))),
        ),
        (
            b"tokenizer.ggml.merges",
            (ggufs.ARRAY, (ggufs.STRING, draw(st.lists(texts, max_size=4)))),
        ),
    ]


@st.composite
def gguf_files(draw: st.DrawFn) -> bytes:
    """A GGUF of a known architecture with hostile sizes, vocabulary and tensors."""
    arch = draw(st.sampled_from(_ARCHITECTURES))
    pairs = dict([(b"general.architecture", (ggufs.STRING, arch)), *_tokenizer(draw)])
    pairs |= {
        f"{arch}.{key}".encode(): (4, draw(st.integers(1, 64)))
        for key in _KEYS
        if "." in key or "_" in key
    }
    known = [f"{arch}.{key}" for key in _KEYS] + [f"tokenizer.ggml.{key}" for key in _TOKENIZER]
    for key in draw(
        st.lists(
            st.sampled_from((*known, "general.alignment", "tokenizer.chat_template")), max_size=4
        )
    ):
        pairs[key.encode()] = draw(_typed())
    tensors = [
        ggufs.Tensor(
            draw(st.sampled_from(_TENSORS) | texts).encode("utf-8", "surrogatepass"),
            draw(
                st.lists(
                    st.integers(0, 4).map(lambda n: 32 * n) | st.integers(0, 2**64 - 1), max_size=5
                )
            ),
            draw(st.sampled_from((0, 1, 8, *GGUF_DTYPES, 99))),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    file = ggufs.placed(ggufs.Gguf(list(pairs.items()), tensors))
    if draw(st.integers(0, 9)) == 0:
        file.more = draw(st.tuples(st.integers(-2, 2**40), st.integers(-2, 2**40)))
    return ggufs.built(file)
