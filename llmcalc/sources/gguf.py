"""GGUF metadata and tensor table, versions 2 and 3; no weight is ever read.

Format: ggml's ``docs/gguf.md``: magic, version, counts, key-value pairs, tensor table, padding,
data. Dimensions are stored fastest first; shapes here are rows first, as everywhere else.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.errors import HeaderError, InputError
from llmcalc.formats.element import GGUF_DTYPES
from llmcalc.sources.header import Header, Stored
from llmcalc.text import shorten

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_PAIRS = 20_000
_MAX_TENSORS = 200_000
_MAX_ALIGNMENT = 1 << 20
_MAX_KEPT = 4096
_MAX_VOCABULARY = 1_000_000
_MAX_KEPT_IN_ALL = 4_000_000
_MAX_WALKED = 4_000_000
"""Items of arrays that are kept, and those that are walked over one by one, in a whole file."""
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class Skipped(int):
    """The length of an array that was walked over and not kept: a vocabulary, its merges."""


class MoreNeeded(Exception):
    """The table goes on behind what is held of the file: at least so many bytes are needed."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__(n_bytes)
        self.n_bytes = n_bytes


class _Cursor:
    """A place in the file; every read is checked against its end."""

    def __init__(
        self, data: mmap.mmap | bytes, name: str, kept: int = _MAX_KEPT, size: int | None = None
    ) -> None:
        self.data = data
        self.name = name
        self.at = 0
        self.kept = kept
        self.held = len(data)
        self.end = self.held if size is None else size
        self.spent = 0
        self.walked = 0

    def keeps(self, length: int) -> bool:
        """Whether an array of that length is kept; what is kept in all is bounded too."""
        self.spent += length if length <= self.kept else 0
        return length <= self.kept and self.spent <= _MAX_KEPT_IN_ALL

    def walk(self, length: int) -> None:
        """Accounts for items that are looked at one by one."""
        self.walked += length
        if self.walked > _MAX_WALKED:
            raise HeaderError(
                f"{self.name}: its arrays have more than {_MAX_WALKED:,} items, more than any"
                " model's"
            )

    def take(self, form: str, what: str) -> Any:
        at, self.at = self.at, self.at + struct.calcsize("<" + form)
        if self.at > self.end:
            raise HeaderError(f"{self.name}: the file ends inside {what}: truncated?")
        if self.at > self.held:
            raise MoreNeeded(self.at)
        return struct.unpack_from("<" + form, self.data, at)[0]

    def skip(self, count: int, what: str) -> None:
        if count > self.end - self.at:
            raise HeaderError(
                f"{self.name}: {what} of {count} bytes is longer than the file: truncated?"
            )
        self.at += count
        if self.at > self.held:
            raise MoreNeeded(self.at)

    def string(self, what: str) -> str:
        length = self.take("Q", what)
        at = self.at
        self.skip(length, what)
        return self.data[at : self.at].decode("utf-8", "backslashreplace")


def read(path: Path) -> Header:
    """Metadata and tensor table of a GGUF file.

    Its pages are mapped, so only what is looked at is loaded.
    """
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            raise HeaderError(f"{path.name} is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse(data, path.name)


def read_vocabulary(path: Path) -> dict[str, Any]:
    """The tokenizer's metadata with its arrays whole: tokens, merges, scores.

    Keys without ``tokenizer.``.
    """
    if path.stat().st_size == 0:
        raise HeaderError(f"{path.name} is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return vocabulary_of(data, path.name)


def vocabulary_of(data: mmap.mmap | bytes, name: str) -> dict[str, Any]:
    """The same of the first bytes of a file, which hold all metadata."""
    cursor = _Cursor(data, name, _MAX_VOCABULARY)
    metadata = _metadata(cursor, _counts(cursor)[1])
    own = [key for key in metadata if key.startswith("tokenizer.")]
    return {key.removeprefix("tokenizer."): metadata[key] for key in own}


def parse(data: mmap.mmap | bytes, name: str) -> Header:
    """Metadata and tensor table of a whole GGUF file in memory or mapped."""
    return parse_beginning(data, len(data), name)[0]


def parse_beginning(data: mmap.mmap | bytes, size: int, name: str) -> tuple[Header, int]:
    """The same of the first bytes of a file of ``size``, and the table's end.

    MoreNeeded where they are too few.
    """
    cursor = _Cursor(data, name, size=size)
    n_tensors, n_pairs = _counts(cursor)
    metadata = _metadata(cursor, n_pairs)
    alignment = _alignment(metadata, name)
    places: dict[str, tuple[int, Stored]] = {}
    for _ in range(n_tensors):
        tensor, offset, stored = _tensor(cursor, alignment)
        if tensor in places:
            raise HeaderError(f"{name}: the tensor {shorten(tensor)} stands twice")
        places[tensor] = (offset, stored)
    # data begins at the next multiple of the alignment
    start = -(-cursor.at // alignment) * alignment
    _check_places(places, cursor.end - start, name)
    tensors = {
        tensor: replace(stored, offset=start + offset)
        for tensor, (offset, stored) in places.items()
    }
    return Header("gguf", tensors, metadata), cursor.at


def parts(name: str) -> list[str]:
    """All files of a split model, by the name of one of them; the name itself where it is whole.

    >>> parts("m-00001-of-00002.gguf")
    ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']
    """
    found = _SPLIT.fullmatch(name)
    if found is None or not 1 <= int(found[2]) <= int(found[3]):
        return [name]
    return [f"{found[1]}-{i + 1:05}-of-{found[3]}.gguf" for i in range(int(found[3]))]


def merge(headers: Sequence[Header]) -> Header:
    """The parts of a split model as one: the first one's metadata, every tensor once."""
    first = headers[0]
    count = first.metadata.get("split.count", 1)
    if count not in (0, len(headers)):
        raise HeaderError(
            f"the model is split into {count} files, and {len(headers)} is found: names end in"
            " 00001-of-N"
        )
    tensors: dict[str, Stored] = {}
    for header in headers:
        for tensor, stored in header.tensors.items():
            if tensor in tensors:
                raise HeaderError(
                    f"tensor {shorten(tensor)} is both in {tensors[tensor].file} and in"
                    f" {stored.file}"
                )
            tensors[tensor] = stored
    promised = first.metadata.get("split.tensors.count", len(tensors))
    if promised != len(tensors):
        raise HeaderError(
            f"the model promises {promised} tensors in all its files, they hold {len(tensors)}"
        )
    return Header("gguf", tensors, first.metadata)


def read_all(path: Path) -> Header:
    """A GGUF file with all the others that it is split into, which lie beside it."""
    files = [path.parent / part for part in parts(path.name)]
    missing = [f.name for f in files if not f.is_file()]
    if missing:
        raise HeaderError(
            f"{path.name} is one of {len(files)} files, and {shorten(missing[0])} is missing"
        )
    return merge([read(file) for file in files])


def _metadata(cursor: _Cursor, n_pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(n_pairs):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise HeaderError(f"{cursor.name}: the metadata key {shorten(key)} stands twice")
        metadata[key] = _value(cursor, cursor.take("I", f"the type of {shorten(key)}"), key)
    return metadata


def _counts(cursor: _Cursor) -> tuple[int, int]:
    magic = bytes(cursor.data[:4])
    if magic != b"GGUF":
        raise HeaderError(f"{cursor.name} is not a GGUF file: it begins with {magic!r}")
    cursor.at = 4
    version = cursor.take("I", "the version")
    if version not in (2, 3):
        # version 3 may be written by a big-endian machine; its numbers are turned around
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        why = "a big-endian file" if swapped in (2, 3) else "2 and 3 are known"
        raise HeaderError(f"{cursor.name} has GGUF version {version}: {why}")
    n_tensors = cursor.take("Q", "the tensor count")
    n_pairs = cursor.take("Q", "the metadata count")
    if n_tensors > _MAX_TENSORS or n_pairs > _MAX_PAIRS:
        raise HeaderError(
            f"{cursor.name} claims {n_tensors} tensors and {n_pairs} metadata entries, more than"
            " any model has"
        )
    return n_tensors, n_pairs


def _value(cursor: _Cursor, kind: int, key: str, depth: int = 0) -> Any:
    what = f"the value of {shorten(key)}"
    if kind in _SCALARS:
        return cursor.take(_SCALARS[kind], what)
    if kind == _STRING:
        return cursor.string(what)
    if kind != _ARRAY or depth > 3:
        raise HeaderError(
            f"{cursor.name}: {shorten(key)} has the value type {kind}, which is unknown"
        )
    kind = cursor.take("I", what)
    length = cursor.take("Q", what)
    if kind in _SCALARS:
        size = struct.calcsize("<" + _SCALARS[kind])
        at = cursor.at
        cursor.skip(length * size, what)
        if not cursor.keeps(length):
            return Skipped(length)
        return list(struct.unpack_from(f"<{length}{_SCALARS[kind]}", cursor.data, at))
    if length > cursor.end - cursor.at:
        raise HeaderError(f"{cursor.name}: {what} has {length} items, more than the file has bytes")
    # arrays in arrays are in no real file, and slow
    cursor.walk(length * (20 if kind == _ARRAY else 1))
    if cursor.keeps(length):
        return [_value(cursor, kind, key, depth + 1) for _ in range(length)]
    for _ in range(length):
        if kind == _STRING:
            cursor.skip(cursor.take("Q", what), what)
        else:
            _value(cursor, kind, key, depth + 1)
    return Skipped(length)


def _alignment(metadata: Mapping[str, Any], name: str) -> int:
    alignment = metadata.get("general.alignment", 32)
    whole = isinstance(alignment, int)
    if not whole or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise HeaderError(
            f"{name}: general.alignment is {alignment}, not a power of two up to {_MAX_ALIGNMENT}"
        )
    return int(alignment)


def _tensor(cursor: _Cursor, alignment: int) -> tuple[str, int, Stored]:
    name = cursor.string("a tensor name")
    where = f"{cursor.name}: tensor {shorten(name)}"
    n_dims = cursor.take("I", "a tensor's rank")
    if n_dims > 4:
        raise HeaderError(f"{where} has {n_dims} dimensions; GGUF has at most 4")
    dims = [cursor.take("Q", "a tensor's shape") for _ in range(n_dims)]
    kind = cursor.take("I", "a tensor's type")
    offset = cursor.take("Q", "a tensor's offset")
    if kind not in GGUF_DTYPES:
        raise HeaderError(f"{where} has the ggml type {kind}, which is unknown")
    form = GGUF_DTYPES[kind]
    if form.block > 1 and not dims:
        raise HeaderError(f"{where} has no dimensions, and {form.name} has blocks of {form.block}")
    if dims and dims[0] % form.block:
        raise HeaderError(
            f"{where}: rows of {dims[0]} do not divide into {form.name} blocks of {form.block}"
        )
    elements = prod(dims)
    if elements > 2**63:
        raise HeaderError(f"{where} has the shape {dims}, more than any file holds")
    if offset % alignment:
        raise HeaderError(f"{where} has the offset {offset}, not a multiple of {alignment}")
    shape = tuple(reversed(dims))  # stored fastest first
    stored = Stored(form.name, shape, form.bytes_for(elements), cursor.name)
    return name, offset, stored


def _check_places(places: Mapping[str, tuple[int, Stored]], data: int, name: str) -> None:
    end = 0
    for tensor, (offset, stored) in sorted(places.items(), key=lambda item: item[1][0]):
        if offset < end:
            raise HeaderError(
                f"{name}: tensor {shorten(tensor)} overlaps the one before it: offset {offset},"
                f" which ends at {end}"
            )
        end = offset + stored.n_bytes
    # padding behind a tensor is allowed, a missing end is not
    if end > max(data, 0):
        raise HeaderError(
            f"{name}: its tensors need {end} bytes, the file holds {max(data, 0)}: truncated?"
        )


_MODEL_TYPES = {
    "llama": "llama",
    "gpt2": "gpt2",
    "qwen2": "qwen2",
    "qwen2moe": "qwen2_moe",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "phi2": "phi",
    "phi3": "phi3",
    "deepseek2": "deepseek_v3",
    "gpt-oss": "gpt_oss",
    "gptneox": "gpt_neox",
    "starcoder2": "starcoder2",
    "olmo2": "olmo2",
    "granite": "granite",
    "mamba": "mamba",
}
"""``general.architecture`` to our family; a Llama with experts is Mixtral."""


_TURNED_IN_PAIRS = ("llama", "granite", "deepseek2")
"""Architectures whose queries and keys turn in pairs of neighbours (llama.cpp's
LLAMA_ROPE_TYPE_NORM).
"""


def to_config(header: Header) -> dict[str, Any] | None:
    """The metadata as a raw config under GGUF's own size names; None where no family is known."""
    arch = header.architecture
    if arch not in _MODEL_TYPES:
        return None
    prefix = f"{arch}."
    raw = {
        key.removeprefix(prefix): value
        for key, value in header.metadata.items()
        if key.startswith(prefix)
    }
    family = "mixtral" if arch == "llama" and raw.get("expert_count") else _MODEL_TYPES[arch]
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is not None and len(embedding.shape) == 2:
        raw["vocab_size"] = embedding.shape[0]
    elif "vocab_size" not in raw and isinstance(tokens, int | list):
        raw["vocab_size"] = int(tokens) if isinstance(tokens, int) else len(tokens)
    raw["tie_word_embeddings"] = "output.weight" not in header.tensors
    raw["attention_bias"] = "blk.0.attn_output.bias" in header.tensors
    raw["torch_dtype"] = _main_dtype(header)
    raw["rope_interleave"] = arch in _TURNED_IN_PAIRS
    if arch == "deepseek2":
        raw |= _latent_sizes(raw)
        if "attention.q_lora_rank" not in raw:
            raw["q_lora_rank"] = None  # as the config of DeepSeek-V2-Lite has it
    return {"model_type": family, **raw}


def _latent_sizes(raw: Mapping[str, Any]) -> dict[str, Any]:
    """The three widths of a latent head; ``key_length`` is that of the compressed row.

    Files from before 2025-04 have no ``*_mla`` keys, and ``key_length`` is the head's own.
    """
    wide = raw.get("attention.key_length_mla", raw.get("attention.key_length"))
    values = raw.get("attention.value_length_mla", raw.get("attention.value_length"))
    turned = raw.get("rope.dimension_count")
    if not (isinstance(wide, int) and isinstance(turned, int) and isinstance(values, int)):
        return {}
    return {
        "qk_nope_head_dim": wide - turned,
        "qk_rope_head_dim": turned,
        "v_head_dim": values,
    }


def _main_dtype(header: Header) -> str | None:
    counts = header.elements_by_dtype()
    return max(counts, key=lambda name: counts[name]) if counts else None


_ROLES = {
    "embed.token": "token_embd",
    "embed.position": "position_embd",
    "head": "output",
    "attn.q": "attn_q",
    "attn.k": "attn_k",
    "attn.v": "attn_v",
    "attn.qkv": "attn_qkv",
    "attn.o": "attn_output",
    "attn.q_norm": "attn_q_norm",
    "attn.k_norm": "attn_k_norm",
    "attn.q_a": "attn_q_a",
    "attn.q_b": "attn_q_b",
    "attn.q_a_norm": "attn_q_a_norm",
    "attn.kv_a": "attn_kv_a_mqa",
    "attn.kv_a_norm": "attn_kv_a_norm",
    "attn.kv_b": "attn_kv_b",
    "attn.sinks": "attn_sinks",
    "mlp.gate": "ffn_gate",
    "mlp.up": "ffn_up",
    "mlp.gate_up": "ffn_up",
    "mlp.down": "ffn_down",
    "router": "ffn_gate_inp",
    "ssm.in": "ssm_in",
    "ssm.conv": "ssm_conv1d",
    "ssm.x": "ssm_x",
    "ssm.dt": "ssm_dt",
    "ssm.out": "ssm_out",
}
"""What a weight does, to GGUF's name for it (ggml's tensor mapping)."""

_BARE = {"ssm.a": "ssm_a", "ssm.d": "ssm_d"}
"""Those whose names there end without ``.weight``."""

_NORMS = {
    "input_layernorm": "attn_norm",
    "ln_1": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "ln_2": "ffn_norm",
    "norm": "output_norm",
    "ln_f": "output_norm",
    "final_layernorm": "output_norm",
    "final_layer_norm": "output_norm",
    "norm_f": "output_norm",
}
_SANDWICH_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


_STEMS = {stem: role for role, stem in reversed((_ROLES | _BARE).items())}
"""The other way round; the first of two roles with one name is meant."""


def role_of(tail: str) -> str | None:
    """What a tensor does by its name there, without its layer; None where no rule has it.

    >>> role_of("ffn_down_exps.weight"), role_of("attn_k.bias"), role_of("altup_proj.weight")
    ('mlp.down', 'attn.k', None)
    """
    stem = tail.partition(".")[0]
    return _STEMS.get(stem.removesuffix("_exps").removesuffix("_shexp"))


def norms_after(anatomy: Anatomy) -> bool:
    """Whether ``post_attention_layernorm`` is called after what it follows, as in Gemma 2.

    gpt-oss' stands before its MLP, and llama.cpp's converter calls it so all the same.
    """
    if anatomy.family == "gpt_oss":
        return True
    return any("post_feedforward_layernorm" in w.name for w in anatomy.weights)


def tensor_name(weight: Weight, sandwich: bool) -> str | None:
    """GGUF's name for a weight, with {layer} in it, or None where no rule is known."""
    module, _, kind = weight.name.rpartition(".")
    if kind not in ("weight", "bias"):
        module = weight.name.removesuffix("_bias")
        kind = "weight" if module == weight.name else "bias"
    last = module.rsplit(".", 1)[-1]
    if weight.role in _BARE:
        return f"blk.{{layer}}.{_BARE[weight.role]}"
    if last == "e_score_correction":
        return "blk.{layer}.exp_probs_b.bias"
    if weight.role == "norm" and last == "norm" and weight.in_stack:
        base: str | None = "attn_norm"
    elif weight.role == "norm":
        base = (_SANDWICH_NORMS if sandwich else {}).get(last) or _NORMS.get(last)
    else:
        base = _ROLES.get(weight.role)
    if base is None:
        return None
    if weight.routed:
        base += "_exps"
    elif "shared_expert" in weight.name:
        base += "_shexp"
    return f"blk.{{layer}}.{base}.{kind}" if weight.in_stack else f"{base}.{kind}"


Promise = tuple[tuple[int, ...], Weight, int]
"""The shape of a tensor, the weight that it is (a part of), and its layer."""


def promised(anatomy: Anatomy, have: Collection[str] = ()) -> dict[str, Promise]:
    """The tensors that a GGUF of this model should hold: name to shape, weight and layer.

    ``have`` are the names in a file: where it holds the two halves of a latent up-projection, they
    are promised in place of the whole. A role without a rule is an InputError.
    """
    sandwich = norms_after(anatomy)
    in_halves = any(name.endswith("attn_k_b.weight") for name in have)
    wants: dict[str, Promise] = {}
    for weight in anatomy.weights:
        name = tensor_name(weight, sandwich)
        if name is None:
            raise InputError(
                f"no rule is known for the GGUF name of {weight.name} ({weight.role}), "
                "so this file cannot be checked"
            )
        pieces = _halves(anatomy, weight) if in_halves and weight.role == "attn.kv_b" else None
        for piece, shape in pieces or _pieces(name, weight):
            for layer in weight.layers.indices:
                wants[piece.replace("{layer}", str(layer))] = (shape, weight, layer)
    return wants


def _pieces(name: str, weight: Weight) -> list[tuple[str, tuple[int, ...]]]:
    """The tensors that one weight becomes: experts are one, their gate and up are two."""
    shape = tuple(int(s) for s in weight.applied_shape)
    if weight.role == "ssm.conv" and len(shape) == 3:
        shape = (shape[0], shape[2])  # a convolution of each channel alone
    if not weight.routed:
        return [(name, shape)]
    experts = int(weight.experts)
    if weight.role != "mlp.gate_up":
        return [(name, (experts, *shape))]
    half = (experts, shape[0] // 2, *shape[1:])
    return [(name.replace("ffn_up", "ffn_gate"), half), (name, half)]


def _halves(anatomy: Anatomy, weight: Weight) -> list[tuple[str, tuple[int, ...]]] | None:
    """The up-projection of latent attention as files since 2025-04 have it: K's part and V's.

    K's is transposed, so that it can be absorbed into the queries.
    """
    heads = next((int(m.n_heads) for m in anatomy.mixers if m.kind in ("kv", "latent")), 0)
    back = next((w for w in anatomy.weights if w.role == "attn.o"), None)
    if not heads or back is None:
        return None
    rank = int(weight.inputs)
    d_v = int(back.inputs) // heads
    d_nope = int(weight.outputs) // heads - d_v
    return [
        ("blk.{layer}.attn_k_b.weight", (heads, rank, d_nope)),
        ("blk.{layer}.attn_v_b.weight", (heads, d_v, rank)),
    ]
