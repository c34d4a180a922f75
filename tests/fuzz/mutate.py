"""Changes to whole files that keep their form: JSON stays JSON, a header keeps its length, a GGUF
its tables.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from llmcalc.config import SIZES
from tests.fuzz import ggufs
from tests.fuzz.hostile import changed, written
from tests.fuzz.targets import SHARD

Mutate = Callable[[bytes, Random, Sequence[bytes]], bytes | None]
"""A file, chance, and other files of its kind, to a changed one; None where it cannot be taken
apart.
"""

JINJA = (
    *(
        "{{ ",
        " }}",
        "{% for m in messages %}",
        "{% endfor %}",
        "{% if ",
        " %}",
        "{% endif %}",
        "{% set a = ",
        "{%- ",
    ),
    *(
        "messages",
        "m.role",
        "m['content']",
        "m.tool_calls",
        "bos_token",
        "add_generation_prompt",
        "loop.index0",
        "tools",
    ),
    *(
        "| tojson",
        "| trim",
        "| length",
        "| join(', ')",
        "| list",
        "| map(attribute='a')",
        "| tojson(indent=4)",
        "| int",
    ),
    *(
        "raise_exception('x')",
        "strftime_now('%d')",
        "range(9)",
        "namespace(a=1)",
        "is defined",
        "is string",
        "not ",
    ),
    *(
        "{% macro a(b) %}",
        "{% endmacro %}",
        "{% break %}",
        "{% continue %}",
        "a(b)",
        "().__class__",
        ".__init__",
        "[0]",
    ),
    *(
        " * 2",
        " + ",
        " % ",
        " ~ ",
        " ** 2",
        "'a'",
        "0",
        "none",
        "{# ",
        " #}",
        "{% include 'a' %}",
        "{% import a as b %}",
    ),
)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def as_json(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """A JSON file."""
    value = _parsed(data)
    if value is None:
        return None
    donor = _parsed(rng.choice(others)) if others else None
    try:
        return written(changed(value, rng, [donor] if donor is not None else []))
    except RecursionError:
        return None


def as_lines(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """JSON Lines, one of them changed."""
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    new = as_json(lines[at], rng, others)
    return None if new is None else b"\n".join([*lines[:at], new, *lines[at + 1 :]])


def as_header(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """A safetensors file: its header changed, with the length that it then has."""
    length = int.from_bytes(data[:8], "little")
    donors = [other[8 : 8 + int.from_bytes(other[:8], "little")] for other in others]
    new = as_json(data[8 : 8 + length], rng, donors)
    return None if new is None else struct.pack("<Q", len(new)) + new + data[8 + length :]


def as_parts(first: Mutate, second: Mutate) -> Mutate:
    """Several files in one, with SHARD between them: the first is of one kind, all others of
    another.
    """

    def mutate(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
        parts = data.split(SHARD)
        at = rng.randrange(len(parts)) if rng.random() < 0.5 else 0
        kin = [p for o in others for p in (o.split(SHARD)[:1] if at == 0 else o.split(SHARD)[1:])]
        new = (first if at == 0 else second)(parts[at], rng, kin)
        return None if new is None else SHARD.join([*parts[:at], new, *parts[at + 1 :]])

    return mutate


_NAMES = (
    "block_count",
    "embedding_length",
    "rope.dimension_count",
    "attention.head_count",
    "vocab_size",
    "expert_count",
)
_KEYS = [
    *(
        f"{a}.{n}".encode()
        for a in ("llama", "mamba", "deepseek2")
        for s in SIZES.values()
        for n in (*s, *_NAMES)
    ),
    *(
        b"split.count",
        b"split.no",
        b"split.tensors.count",
        b"general.architecture",
        b"general.alignment",
        b"tokenizer.ggml.tokens",
        b"tokenizer.ggml.scores",
    ),
    *(b"tokenizer.ggml.merges", b"tokenizer.ggml.token_type", b"tokenizer.ggml.unknown_token_id"),
    *(
        b"tokenizer.ggml.bos_token_id",
        b"tokenizer.ggml.add_space_prefix",
        b"tokenizer.chat_template",
    ),
    *(
        b"token_embd.weight",
        b"output.weight",
        b"blk.0.attn_q.weight",
        b"blk.0.ffn_up.weight",
        b"blk.0.attn_output.bias",
    ),
]


def as_gguf(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """A GGUF: pairs, tensors and counts."""
    try:
        file = ggufs.taken(data)
        return None if file is None else ggufs.built(ggufs.changed(file, rng, _KEYS))
    except RecursionError:
        return None


def as_jinja(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """A template: pieces of the language put in, cut out, or doubled."""
    text = data.decode("utf-8", "replace")
    for _ in range(rng.choice((1, 2, 3))):
        i, j = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        j = min(j, i + 40)
        middle = rng.choice((rng.choice(JINJA), rng.choice(JINJA), text[i:j] * 2, ""))
        text = text[:i] + middle + text[i if rng.random() < 0.5 else j :]
    return text.encode("utf-8", "replace")


def as_any(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """What has no form of its own here."""
    return None


def as_logits(data: bytes, rng: Random, others: Sequence[bytes]) -> bytes | None:
    """Logits: safetensors or JSON by their form, NPY by its bytes."""
    return (as_header if data[8:9] == b"{" else as_json)(data, rng, others)


MUTATORS: dict[str, Mutate] = {
    "safetensors_header": as_header,
    "safetensors_index": as_parts(as_json, as_header),
    "gguf_file": as_gguf,
    "gguf_beginning": as_gguf,
    "gguf_parts": as_parts(as_gguf, as_gguf),
    "adapter_config": as_json,
    "ollama_manifest": as_json,
    "kept_header": as_any,
    "config": as_json,
    "config_formats": as_json,
    "config_and_tensors": as_parts(as_json, as_header),
    "tokenizer_json": as_json,
    "tokenizer_model": as_any,
    "gguf_vocabulary": as_gguf,
    "tekken": as_json,
    "chat_template": as_jinja,
    "tokenizer_config": as_json,
    "chat_messages": as_json,
    "json_object": as_json,
    "logits_file": as_logits,
    "corpus_lines": as_lines,
    "tensor_values": lambda d, r, o: (as_gguf if d.startswith(b"GGUF") else as_header)(d, r, o),
}
