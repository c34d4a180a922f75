"""Inputs that once ended in a traceback, took seconds or gigabytes: each ends in one line, or in an
answer, at once.
"""

from __future__ import annotations

import base64
import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcalc.errors import InputError, LlmcalcError
from tests.conftest import Ran

Cli = Callable[..., Ran]
SIZES = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 9,
}


def refused(ran: Ran, *codes: int) -> None:
    lines = [x for x in ran.err.splitlines() if x.startswith("error: ")]
    assert ran.code in (codes or (2, 3)), (ran.code, ran.err)
    assert len(lines) == 1 and len(lines[0]) < 500 and "a bug in llmcalc" not in ran.err


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": 1},
        {"model_type": "gemma3n_text", **SIZES, "intermediate_size": [], "num_kv_shared_layers": 2},
        {"model_type": "step3p7", "text_config": {"mlp_layer_types": []}, "vision_config": {}},
        {"model_type": "xmod", **SIZES, "languages": float("-inf")},
        {"model_type": "modernbert", **SIZES, "local_attention": "a"},
        {"model_type": "bamba", **SIZES, "attn_layer_indices": float("-inf")},
        {"model_type": "kimi_k25", "vision_config": {"merge_kernel_size": float("-inf")}},
        {"model_type": "qwen3_vl_moe", "vision_config": {"deepstack_visual_indexes": 1}},
        {"model_type": "bert-generation", **SIZES, "is_decoder": "a" * 5000},
        {"model_type": "llama", **SIZES, "num_attention_heads": json.loads("[" * 90 + "]" * 90)},
    ],
    ids=lambda c: str(c.get("model_type")),
)
@pytest.mark.parametrize("command", ["params", "kvcache"])
def test_a_config_of_wrong_kinds(
    cli: Cli, tmp_path: Path, config: dict[str, Any], command: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    refused(cli(command, tmp_path, *(["--ctx", 8] if command == "kvcache" else [])), 2)


def test_nesting_is_bounded(cli: Cli, tmp_path: Path) -> None:
    for depth in (101, 500, 982, 5000):
        (tmp_path / "config.json").write_text(
            '{"model_type": "llama", "a": ' + "[" * depth + "]" * depth + "}"
        )
        ran = cli("params", tmp_path)
        refused(ran, 2)
        assert "nested too deeply" in ran.err


def test_a_model_whose_cross_layers_lie_beyond_its_end(cli: Cli, tmp_path: Path) -> None:
    """Mllama's cross-attention is in layers 3, 8 and so on: a model of three layers has none, and
    an answer.
    """
    config = {"model_type": "mllama", "text_config": {"num_hidden_layers": 3}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    ran = cli("kvcache", tmp_path, "--ctx", 1000, "--engine", "vllm", "--json")
    assert ran.code == 0 and json.loads(ran.out)["facts"]["kv_bytes"] > 0, ran.err


@pytest.mark.parametrize("model", ["bert-base-uncased", "phi-1"])
def test_heads_with_a_bias_in_a_format_of_embeddings(cli: Cli, model: str) -> None:
    ran = cli("dtype", "mlx4", "--model", model)
    assert ran.code == 0 or "no preset" in ran.err or "bert" in model, ran.err
    assert ran.code != 70


def test_thousands_of_layers_by_layer(cli: Cli) -> None:
    begun = time.monotonic()
    ran = cli("params", "gemma-3-27b", "--set", "n_layers=1000", "--by", "layer")
    assert ran.code == 0 and time.monotonic() - begun < 10


GGUF_NOTHING = b"GGUF\x03\0\0\0" + b"\0" * 16
GGUF_NO_DIMENSIONS = base64.b64decode(
    "R0dVRgMAAAABAAAAAAAAAAAAAAAAAAAADQAAAAAAAABtYW1iYS5uhoaGhmkAAAAAACgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
)


@pytest.mark.parametrize(
    "data", [b"", GGUF_NOTHING, GGUF_NO_DIMENSIONS], ids=["empty", "nothing", "no dimensions"]
)
def test_a_gguf_with_nothing_in_it(cli: Cli, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    refused(cli("tokenize", "--tokenizer", path, "hi"))
    refused(cli("tokenize", "--model", path, "hi"))
    refused(cli("dtype", "--tensor", f"{path}:mamba"))


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf(**pairs: bytes) -> bytes:
    """A GGUF of metadata alone: each value already packed, its type before it."""
    body = b"".join(text(key.replace("__", ".")) + value for key, value in pairs.items())
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(pairs)) + body


def strings(*values: str) -> bytes:
    return struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def numbers(*values: int) -> bytes:
    return struct.pack("<IIQ", 9, 4, len(values)) + struct.pack(f"<{len(values)}I", *values)


def lists(*values: int) -> bytes:
    return struct.pack("<IIQ", 9, 9, len(values)) + b"".join(
        struct.pack("<IQI", 4, 1, v) for v in values
    )


def floats(*values: float) -> bytes:
    return struct.pack("<IIQ", 9, 6, len(values)) + struct.pack(f"<{len(values)}f", *values)


def name(value: str) -> bytes:
    return struct.pack("<I", 8) + text(value)


NUMBER, FLOAT = struct.pack("<II", 4, 7), struct.pack("<If", 6, 1.5)
BPE = {"tokenizer__ggml__model": name("gpt2"), "tokenizer__ggml__tokens": strings("a", "b", "ab")}
SCORED = {
    "tokenizer__ggml__model": name("llama"),
    "tokenizer__ggml__tokens": strings("a", "b", "ab"),
}


@pytest.mark.parametrize(
    "pairs",
    [
        {**BPE, "tokenizer__ggml__merges": numbers(1, 2)},
        {**BPE, "tokenizer__ggml__merges": NUMBER},
        {**BPE, "tokenizer__ggml__token_type": NUMBER},
        {**BPE, "tokenizer__ggml__tokens": FLOAT},
        {**SCORED, "tokenizer__ggml__scores": lists(1, 2, 3)},
        {
            **SCORED,
            "tokenizer__ggml__scores": floats(1, 2, 3),
            "tokenizer__ggml__unknown_token_id": NUMBER,
        },
        {
            **SCORED,
            "tokenizer__ggml__scores": floats(1, 2, 3),
            "tokenizer__ggml__unknown_token_id": strings("a"),
        },
    ],
)
def test_a_vocabulary_of_wrong_kinds(cli: Cli, tmp_path: Path, pairs: dict[str, bytes]) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(**pairs))
    refused(cli("tokenize", "--tokenizer", path, "ab"))


@pytest.mark.parametrize("kind", ["WordPiece", "WordLevel", "BPE"])
def test_an_id_that_would_take_gigabytes(cli: Cli, tmp_path: Path, kind: str) -> None:
    model = {"type": kind, "unk_token": "[UNK]", "vocab": {"[UNK]": 0, "##s": 2**31}, "merges": []}
    if kind == "WordPiece":
        model |= {"continuing_subword_prefix": "##", "max_input_chars_per_word": 0}
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({"model": model}))
    begun = time.monotonic()
    refused(cli("tokenize", "--tokenizer", path, "hi"))
    assert time.monotonic() - begun < 10


def test_a_word_that_a_tokenizer_has_no_id_for(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        json.dumps({"model": {"type": "WordLevel", "unk_token": "[UNK]", "vocab": {"a": 0}}})
    )
    refused(cli("tokenize", "--tokenizer", path, "hi"))


def test_tekken_with_a_rank_twice(cli: Cli, tmp_path: Path) -> None:
    config = {"default_vocab_size": 4, "default_num_special_tokens": 1, "pattern": "\\S+"}
    words = [{"rank": 0, "token_bytes": "YQ=="}, {"rank": 0, "token_bytes": "Yg=="}]
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": words, "special_tokens": []}))
    ran = cli("tokenize", "--tokenizer", path, "ab")
    refused(ran)
    assert "Traceback" not in ran.err and "panicked" not in ran.err


@pytest.mark.parametrize("data", [b"\x0a\x03\x0a\x01\xff", b"\xff\xfe\xfd", b""])
def test_a_sentencepiece_model_that_is_none(cli: Cli, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "tokenizer.model"
    path.write_bytes(data)
    refused(cli("tokenize", "--tokenizer", path, "ab"))


@pytest.mark.parametrize(
    "template",
    [
        "{{ 1 % 0 }}",
        "{{ range(3)|slice(0)|list }}",
        "{{ 'a'.encode('nope') }}",
        "{% break %}",
        "{% for a in [1] %}" * 25 + "{% endfor %}" * 25,
        "{{ cycler() }}",
        "{{ 1e999|round|int }}",
        "{{ undefined.a.b }}",
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
    ],
)
def test_a_template_that_fails(template: str) -> None:
    from llmcalc.tokens.chat import Conversation, render

    with pytest.raises(InputError, match="refuses"):
        render(template, Conversation([{"role": "user", "content": "Hi"}]), {})


@pytest.mark.parametrize(
    "template",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (7**(7**8))|string|length }}",
        "{{ ('a' * 10**10)|length }}",
        "{{ 'x'|center(10**10) }}",
        (
            "{% set x = namespace(a='a') %}{% for i in range(40) %}{% set x.a = x.a ~ x.a %}{%"
            " endfor %}"
        ),
    ],
)
def test_a_template_without_end(template: str) -> None:
    """It is stopped: by its time, by its memory, and the process that asked goes on."""
    from llmcalc.tokens.chat import Conversation, render

    begun = time.monotonic()
    with pytest.raises(InputError, match=r"time or memory|more memory|refuses"):
        render(template, Conversation([{"role": "user", "content": "Hi"}]), {})
    assert time.monotonic() - begun < 105


def test_a_template_finds_no_modules_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file called jinja2.py in the directory one stands in is not imported."""
    from llmcalc.tokens.chat import Conversation, render

    (tmp_path / "jinja2.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    talk = Conversation([{"role": "u", "content": "é"}])
    text, _ = render("{{ messages[0].content | tojson(ensure_ascii=False) }}", talk, {})
    assert text == '"é"'


@pytest.mark.parametrize(
    "raw", [{"chat_template": [1]}, {"chat_template": [{"name": 3}]}, {"chat_template": 5}]
)
def test_templates_of_wrong_kinds(cli: Cli, tmp_path: Path, raw: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **SIZES}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(raw))
    (tmp_path / "m.json").write_text(json.dumps([{"role": "user", "content": "Hi"}]))
    refused(cli("tokenize", "--model", tmp_path, "--chat", tmp_path / "m.json"))
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    refused(cli("tokenize", "--model", tmp_path, "--chat", tmp_path / "m.json"))


def test_an_npy_header_that_is_no_python(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "l.npy"
    path.write_bytes(
        base64.b64decode(
            "k05VTVBZAQB2AHsnZGVzY3InOiAnPGkyJywgJWZvcnRyYW5fb3JkZXInOiBGYWxzZSwgJ3NoYXBlJzogKDEsIDYpLCB9ICAgICAgICAg"
            "ICAgICAgICAgICAgICAgAQAAAAAAAAAgICAgIBfp39/f39/f3yAgICAgJyAgICAgICAFAA=="
        )
    )
    refused(cli("sample", "--logits-file", path))


def test_a_shard_name_that_no_file_system_takes(tmp_path: Path) -> None:
    from llmcalc.sources.safetensors import read_index

    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": {"a": "x" * 300}}))
    with pytest.raises(LlmcalcError):
        read_index(path)


@pytest.mark.parametrize("length", [201, 300, 5000])
def test_a_name_of_any_length(cli: Cli, length: int) -> None:
    refused(cli("params", "x" * length), 2)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3_vl", "vision_config": {}},
        {"model_type": "qwen3_vl", "text_config": "x", "vision_config": {}},
        {"model_type": "exaone4_5"},
        {"model_type": "recurrent_gemma", **SIZES, "intermediate_size": 1},
        {"model_type": "mamba", **SIZES, "intermediate_size": 5e-324},
        {"model_type": "llama", **SIZES, "num_hidden_layers": 1001},
    ],
)
def test_a_model_that_cannot_be(cli: Cli, tmp_path: Path, config: dict[str, Any]) -> None:
    """It would hold itself, have a size of nothing, or more layers than any."""
    (tmp_path / "config.json").write_text(json.dumps(config))
    begun = time.monotonic()
    for words in (("params",), ("dtype", "q4_k_m", "--model")):
        refused(cli(*words, tmp_path), 2)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("rank", [float("inf"), 0])
def test_tekken_that_lacks_bytes(cli: Cli, tmp_path: Path, rank: float) -> None:
    config = {"default_vocab_size": 2, "default_num_special_tokens": 1, "pattern": "\\S+"}
    words = [{"rank": rank, "token_bytes": "YQ=="}]
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": words, "special_tokens": []}))
    refused(cli("tokenize", "--tokenizer", path, "bcd"))


def test_a_number_of_thousands_of_digits_in_an_error(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(
        '{"model": {"type": "BPE", "vocab": {}}, "added_tokens": [{"id": 1' + "0" * 4000 + "}]}"
    )
    refused(cli("tokenize", "--tokenizer", path, "hi"))


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("config.json", '{"model_type": "llama", "a": [' + "[]," * 250_000 + "[]]}"),
        ("config.json", '{"a": "' + "x" * 9_000_000 + '"}'),
        (
            "model.safetensors.index.json",
            json.dumps({"weight_map": {f"t{i}": f"s{i}.safetensors" for i in range(20_000)}}),
        ),
    ],
    ids=["lists", "long", "shards"],
)
def test_more_than_any_model_has(cli: Cli, tmp_path: Path, file: str, text: str) -> None:
    (tmp_path / file).write_text(text)
    begun = time.monotonic()
    refused(cli("params", tmp_path / file), 2)
    assert time.monotonic() - begun < 10


def test_gguf_arrays_beyond_every_budget(cli: Cli, tmp_path: Path) -> None:
    """Each array may be small: what is walked over in all is counted."""
    inside = struct.pack("<IQ", 4, 0)
    one = struct.pack("<IIQ", 9, 9, 4096) + inside * 4096
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(**{f"a{i}": one for i in range(100)}))
    begun = time.monotonic()
    ran = cli("params", path)
    refused(ran, 2)
    assert "4,000,000 items" in ran.err and time.monotonic() - begun < 60


def test_pieces_that_join_in_millions_of_ways(cli: Cli, tmp_path: Path) -> None:
    words = [f"{'a' * n}" for n in range(1, 65)] + [
        f"{'a' * n}{'b' * m}" for n in range(32) for m in range(1, 33)
    ]
    scores = floats(*[1.0] * len(dict.fromkeys(words)))
    tokens = strings(*dict.fromkeys(words))
    path = tmp_path / "m.gguf"
    path.write_bytes(
        gguf(
            tokenizer__ggml__model=name("llama"),
            tokenizer__ggml__tokens=tokens,
            tokenizer__ggml__scores=scores,
        )
    )
    assert cli("tokenize", "--tokenizer", path, "aab").code in (0, 2)


def test_errors_are_of_a_bounded_length(cli: Cli, tmp_path: Path) -> None:
    config = {"model_type": "bert", **SIZES, "architectures": ["Bert" + "x" * 5000]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert len(cli("params", tmp_path).err) < 1500


def test_layers_are_bounded_by_any_of_their_names(cli: Cli, tmp_path: Path) -> None:
    sizes = {
        "d_model": 8,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "encoder_ffn_dim": 8,
    }
    layers = {"encoder_layers": 9999, "decoder_layers": 9999, "decoder_ffn_dim": 8, "vocab_size": 9}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bart", **sizes, **layers}))
    refused(cli("params", tmp_path, "--by", "layer"), 2)


def test_messages_nested_too_deeply(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('[{"role": ' + "[" * 980 + "]" * 980 + "}]")
    refused(cli("tokenize", "--model", "toy", "--chat", path), 2, 3)
