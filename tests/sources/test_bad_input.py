"""Files that nobody should trust: one line, the right exit code, no traceback, whatever
is in them.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmcalc.errors import LlmcalcError
from llmcalc.sources import gguf, safetensors
from tests.conftest import Ran

Cli = Callable[..., Ran]

# Public bug reports on readers of these formats, as files: name, bytes, what the one line must
# name.
REPORTED = [
    # huggingface/safetensors 0.4.3 wrote two JSON values when there were no tensors
    (
        "two_values.safetensors",
        "KAAAAAAAAAB7fSwiX19tZXRhZGF0YV9fIjp7ImtleSI6InZhbHVlIn19ICAgIA==",
        ["header", "JSON"],
    ),
    (
        "int_metadata.safetensors",
        "UAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJzdGVwIjowfSwidyI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMV0sImRhdGFfb2Zmc2V0cyI6WzAsNF19fQAAAAA=",
        ["__metadata__", "step"],
    ),
    (
        "reserved.safetensors",
        "QQAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6eyJkdHlwZSI6IkkzMiIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzAsOF19fQAAAAAAAAAA",
        ["__metadata__"],
    ),
    ("huge_length.safetensors", "AAAAAAAAAIB7fQ==", ["header length"]),
    (
        "overlap.safetensors",
        "bAAAAAAAAAB7ImEiOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOlswLDhdfSwiYiI6eyJkdHlwZSI6IkYzMiIsInNoYXBlIjpbMl0sImRhdGFfb2Zmc2V0cyI6WzQsMTJdfX0AAAAAAAAAAAAAAAA=",
        ["b", "overlap"],
    ),
    (
        "offsets.safetensors",
        "NgAAAAAAAAB7InciOnsiZHR5cGUiOiJGMzIiLCJzaGFwZSI6WzRdLCJkYXRhX29mZnNldHMiOlswLDhdfX0AAAAAAAAAAA==",
        ["w", "16", "8"],
    ),
    (
        "dtype.safetensors",
        "NgAAAAAAAAB7InciOnsiZHR5cGUiOiJGMTIiLCJzaGFwZSI6WzJdLCJkYXRhX29mZnNldHMiOlswLDNdfX0AAAA=",
        ["F12", "w"],
    ),
    (
        "lfs.safetensors",
        base64.b64encode(
            b"version https://git-lfs.github.com/spec/v1\noid sha256:"
            + b"a" * 64
            + b"\nsize 4976698672\n"
        ).decode(),
        ["Git LFS pointer"],
    ),
    (
        "alignment.gguf",
        "R0dVRgMAAAABAAAAAAAAAAIAAAAAAAAAFAAAAAAAAABnZW5lcmFsLmFyY2hpdGVjdHVyZQgAAAAFAAAAAAAAAGxsYW1hEQAAAAAAAABnZW5lcmFsLmFsaWdubWVudAQAAAAAAABAAQAAAAAAAAB3AgAAAAQAAAAAAAAAAgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==",
        ["general.alignment", "1073741824"],
    ),
    (
        "alignment0.gguf",
        "R0dVRgMAAAABAAAAAAAAAAIAAAAAAAAAFAAAAAAAAABnZW5lcmFsLmFyY2hpdGVjdHVyZQgAAAAFAAAAAAAAAGxsYW1hEQAAAAAAAABnZW5lcmFsLmFsaWdubWVudAQAAAAAAAAAAQAAAAAAAAB3AgAAAAQAAAAAAAAAAgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA==",
        ["general.alignment"],
    ),
    (
        "type256.gguf",
        "R0dVRgMAAAAAAAAAAAAAAAEAAAAAAAAADAAAAAAAAABnZW5lcmFsLm5hbWUAAQAAAAAAAAAAAAAAAAAAAAAAAA==",
        ["256", "general.name"],
    ),
]


@pytest.mark.parametrize(("name", "content", "named"), REPORTED, ids=[r[0] for r in REPORTED])
def test_reported_files(
    cli: Cli, tmp_path: Path, name: str, content: str, named: list[str]
) -> None:
    path = tmp_path / name
    path.write_bytes(base64.b64decode(content))
    ran = cli("params", path, "--json")
    assert ran.code == 2 and ran.out == ""
    assert "Traceback" not in ran.err and all(word in ran.err for word in named), ran.err
    assert len(ran.err.strip().splitlines()[0]) < 400


def header(entries: Any, data: int = 0, **more: Any) -> bytes:
    text = (entries if isinstance(entries, str) else json.dumps(entries)).encode()
    return struct.pack("<Q", more.get("length", len(text))) + text + b"\0" * data


def one(
    name: str = "w", dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)
) -> dict[str, Any]:
    return {name: {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}}


BROKEN = {
    "empty": b"",
    "seven_bytes": b"1234567",
    "longer_than_the_file": header({}, length=100),
    "over_100_mb": struct.pack("<Q", 100_000_001),
    "not_json": header("{nope"),
    "a_list": header([]),
    "reversed_offsets": header(one(offsets=(8, 0)), 8),
    "negative_shape": header(one(shape=(-2,)), 8),
    "float_shape": header(one(shape=(2.0,)), 8),
    "bool_shape": header(one(shape=(True,), offsets=(0, 4)), 4),
    "huge_shape": header(one(shape=(2**62, 2**62)), 8),
    "gap": header({**one(), **one("v", offsets=(12, 20))}, 20),
    "truncated_data": header(one(), 4),
    "trailing_data": header(one(), 12),
    "duplicate_names": header(
        '{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        4,
    ),
    "missing_key": header({"w": {"dtype": "F32", "shape": [2]}}, 8),
    "deeply_nested": header("[" * 50_000 + "]" * 50_000),
    "html": b"<!DOCTYPE html><html>Not found</html>" + b" " * 64,
    "pickle": b"\x80\x02}q\x00." + b"\0" * 64,
    "zip": b"PK\x03\x04" + b"\0" * 64,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_safetensors_file(cli: Cli, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(BROKEN[kind])
    ran = cli("params", path)
    assert (
        ran.code == 2
        and ran.out == ""
        and ran.err.startswith("error: ")
        and "Traceback" not in ran.err
    )


def gguf_file(
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensors: int = 0,
    pairs: bytes = b"",
    n_pairs: int = 0,
    rest: bytes = b"",
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors, n_pairs) + pairs + rest


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


BROKEN_GGUF = {
    "empty": b"",
    "wrong_magic": gguf_file(magic=b"GGML"),
    "version_1": gguf_file(version=1),
    "a_future_version": gguf_file(version=4),
    "big_endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "truncated_table": gguf_file(tensors=3, rest=text("blk.0.attn_q.weight")),
    "a_string_of_2_60": gguf_file(
        n_pairs=1, pairs=text("general.name") + struct.pack("<IQ", 8, 2**60)
    ),
    "an_array_of_2_60": gguf_file(n_pairs=1, pairs=text("x") + struct.pack("<IIQ", 9, 8, 2**60)),
    "2_40_tensors": gguf_file(tensors=2**40),
    "2_40_pairs": gguf_file(n_pairs=2**40),
    "nested_arrays": gguf_file(
        n_pairs=1, pairs=text("x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 60
    ),
    "five_dimensions": gguf_file(
        tensors=1, rest=text("w") + struct.pack("<I5QIQ", 5, 1, 1, 1, 1, 1, 0, 0)
    ),
    "unknown_type": gguf_file(tensors=1, rest=text("w") + struct.pack("<IQIQ", 1, 32, 99, 0)),
    "unaligned": gguf_file(tensors=1, rest=text("w") + struct.pack("<IQIQ", 1, 32, 0, 8)),
    "rows_of_8_in_q6_k": gguf_file(
        tensors=1, rest=text("w") + struct.pack("<IQQIQ", 2, 8, 64, 14, 0)
    ),
    "data_missing": gguf_file(tensors=1, rest=text("w") + struct.pack("<IQIQ", 1, 2**40, 0, 0)),
    "a_name_twice": gguf_file(
        tensors=2, rest=(text("w") + struct.pack("<IQIQ", 1, 8, 0, 0)) * 2 + b"\0" * 64
    ),
}


@pytest.mark.parametrize("kind", BROKEN_GGUF)
def test_a_broken_gguf_file(cli: Cli, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(BROKEN_GGUF[kind])
    ran = cli("params", path)
    assert (
        ran.code == 2
        and ran.out == ""
        and ran.err.startswith("error: ")
        and "Traceback" not in ran.err
    )


def test_q6_k_names_the_tensor_and_the_block(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "f.gguf"
    path.write_bytes(BROKEN_GGUF["rows_of_8_in_q6_k"])
    ran = cli("params", path)
    assert "tensor w" in ran.err and "256" in ran.err


def test_empty_metadata_is_fine(cli: Cli, tmp_path: Path) -> None:
    # 31 shards of a real model have it; readers raised KeyError data_offsets
    path = tmp_path / "f.safetensors"
    path.write_bytes(
        base64.b64decode(
            "TAAAAAAAAAB7Il9fbWV0YWRhdGFfXyI6e30sInciOnsiZHR5cGUiOiJCRjE2Iiwic2hhcGUiOlsyLDNdLCJkYXRhX29mZnNldHMiOlswLDEyXX19AAAAAAAAAAAAAAAA"
        )
    )
    facts = json.loads(cli("params", path, "--json").out)["facts"]
    assert (facts["total_params"], facts["weight_bytes"]["stored"]) == (6, 12)


def test_gguf_shapes_are_rows_first_and_say_so(cli: Cli, tmp_path: Path) -> None:
    # ggml-org/llama.cpp#6040: GGUF writes the fastest dimension first, [768, 50257] is a matrix of
    # 50257 rows
    path = tmp_path / "f.gguf"
    path.write_bytes(
        base64.b64decode(
            "R0dVRgMAAAABAAAAAAAAAAIAAAAAAAAAFAAAAAAAAABnZW5lcmFsLmFyY2hpdGVjdHVyZQgAAAAFAAAAAAAAAGxsYW1hEQAAAAAAAABsbGFtYS5ibG9ja19jb3VudAQAAAABAAAAAQAAAAAAAAB3AgAAAAQAAAAAAAAAAgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
        )
    )
    data = json.loads(cli("params", path, "--tensors", "--json").out)
    assert data["facts"]["total_params"] == 8 and data["rows"][0]["shape"] == [2, 4]
    assert any("rows first" in note for note in data["notes"])


SIZES: list[Any] = [-1, 0, 1.5, "768", True, 10**30, [768], {}, float("nan")]


@pytest.mark.parametrize("value", SIZES, ids=str)
@pytest.mark.parametrize("key", ["n_embd", "n_layer", "n_head", "vocab_size", "n_positions"])
def test_sizes_that_cannot_be(cli: Cli, tmp_path: Path, key: str, value: Any) -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 2,
        "n_head": 12,
        "vocab_size": 100,
        "n_positions": 64,
        key: value,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    ran = cli("params", path)
    assert ran.code == 2 and ran.err.startswith("error: gpt2: ") and "Traceback" not in ran.err


CONFIGS = {
    "not_json": ("{", "not JSON"),
    "a_list": ("[]", "not an object"),
    "a_number": ("7", "not an object"),
    "no_family": ("{}", "no model_type"),
    "unknown_family": ('{"model_type": "llamma"}', "llamma"),
    "missing_size": (
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}',
        "d_ff",
    ),
    "heads": (
        '{"model_type": "gpt2", "n_embd": 10, "n_layer": 1, "n_head": 3, "vocab_size": 9, "n_positions": 4}',
        "do not divide",
    ),
    "kv_heads": (
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 3, "vocab_size": 9, "intermediate_size": 8}',
        "do not divide",
    ),
    "layer_types": (
        '{"model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 9, "intermediate_size": 8, "layer_types": ["x"]}',
        "layer_types",
    ),
    "deep": ('{"a":' * 5000 + "1" + "}" * 5000, "error"),
    "flag": (
        '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 9, "intermediate_size": 8, "attention_bias": "yes"}',
        "attention_bias",
    ),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_config_that_says_too_little_or_nonsense(cli: Cli, tmp_path: Path, kind: str) -> None:
    content, named = CONFIGS[kind]
    path = tmp_path / "config.json"
    path.write_text(content)
    ran = cli("params", path)
    assert ran.code == 2 and named in ran.err and "Traceback" not in ran.err, ran.err


def test_an_unknown_family_shows_two_ways_on(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    sizes = {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "vocab_size": 9,
        "intermediate_size": 8,
    }
    path.write_text(json.dumps({"model_type": "llamma", "auto_map": {"AutoModel": "x.Y"}, **sizes}))
    ran = cli("params", path)
    assert ran.code == 2 and "llama" in ran.err and "--as" in ran.err and "never runs" in ran.err
    counted = cli("params", path, "--as", "llama")
    assert counted.code == 0 and "as llama because --as asked" in counted.err


def test_terminal_escapes_in_names_do_not_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    name = "layer\x1b[31mred\u202etxt\n\u0085"
    path = tmp_path / "f.safetensors"
    path.write_bytes(header(one(name), 8))
    plain, data = cli("params", path), cli("params", path, "--json")
    assert "\x1b" not in plain.out and "\u202e" not in plain.out and "\\x1b[31m" in plain.out
    assert json.loads(data.out)["rows"][0]["name"] == name and "\u202e" not in data.out
    csv = cli("params", path, "--format", "csv").out
    assert "\x1b" not in csv
    broken = cli("params", tmp_path / "\x1b[31mnone.safetensors")
    assert "\x1b" not in broken.err


@settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.binary(max_size=300), st.sampled_from([b"", b"GGUF\x03\0\0\0", struct.pack("<Q", 40)]))
def test_any_bytes_give_a_header_or_an_error(tmp_path: Path, content: bytes, start: bytes) -> None:
    path = tmp_path / "any"
    path.write_bytes(start + content)
    for read in (safetensors.read, gguf.read):
        with suppress(LlmcalcError):
            read(path)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 400), st.integers(0, 255))
def test_one_changed_byte_of_a_real_gguf_never_crashes(place: int, byte: int) -> None:
    whole = bytearray(
        gguf_file(
            tensors=1,
            n_pairs=1,
            pairs=text("general.architecture") + struct.pack("<I", 8) + text("llama"),
            rest=text("w") + struct.pack("<IQQIQ", 2, 32, 4, 2, 0),
        )
    )
    whole += b"\0" * (-len(whole) % 32 + 72)
    whole[place % len(whole)] = byte
    with suppress(LlmcalcError):
        gguf.parse(bytes(whole), "f.gguf")
