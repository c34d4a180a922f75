"""Conversations: OpenAI's published rule, and variables that a template reads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Ran
from tests.tokens.test_cases import BPE, added, made

Cli = Callable[..., Ran]

JARGON = (
    "system: You are a helpful, pattern-following assistant that translates corporate jargon into"
    " plain English.\n"
    "example_user: New synergies will help drive top-line growth.\n"
    "example_assistant: Things working well together will increase revenue.\n"
    "example_user: Let's circle back when we have more bandwidth to touch base on opportunities for"
    " increased leverage.\n"
    "example_assistant: Let's talk later when we're less busy about how to do better.\n"
    "user: This late pivot means we don't have time to boil the ocean for the client deliverable."
)
"""The example of OpenAI's Cookbook, "How to count tokens with tiktoken"."""


@pytest.mark.parametrize(
    ("model", "tokens"),
    # what the Cookbook prints beside each, from its API's usage
    [("gpt-3.5-turbo", 129), ("gpt-4", 129), ("gpt-4o", 124), ("gpt-4o-mini", 124)],
)
def test_openais_rule_gives_its_published_counts(
    cli: Cli, tmp_path: Path, model: str, tokens: int
) -> None:
    messages = []
    for line in JARGON.splitlines():
        who, _, said = line.partition(": ")
        named = "_" in who
        messages.append({"role": "system" if named else who, "content": said})
        messages[-1] |= {"name": who} if named else {}
    path = tmp_path / "chat.json"
    path.write_text(json.dumps(messages))
    facts = json.loads(cli("tokenize", "--model", model, "--chat", path, "--json").out)["facts"]
    assert facts["n_tokens"] == tokens == facts["content_tokens"] + facts["overhead_tokens"]


TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if tools %}<tools>{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)
"""Shaped as Qwen3's: an empty block of thought where thinking is turned off."""


@pytest.fixture
def thinking(tmp_path: Path) -> Path:
    words = ("<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tools>")
    vocab = {"h": 0, "i": 1, "\n": 2, "\n\n": 3, "hi": 4}
    made(
        tmp_path,
        BPE | {"vocab": vocab, "merges": [["h", "i"], ["\n", "\n"]]},
        added_tokens=[added(10 + i, word) for i, word in enumerate(words)],
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (tmp_path / "config.json").write_text('{"model_type": "qwen3"}')
    return tmp_path


def ids(ran: Ran) -> list[int]:
    return list(json.loads(ran.out)["facts"]["ids"])


def test_a_chat_files_other_keys_reach_the_template(cli: Cli, thinking: Path) -> None:
    """huggingface/transformers#37949: with thinking off the prompt is four tokens longer."""
    path = thinking / "chat.json"
    messages = [{"role": "user", "content": "hi"}]
    asking = ("tokenize", "--model", thinking, "--chat", path, "--json")
    path.write_text(json.dumps({"messages": messages}))
    plain = ids(cli(*asking))
    assert plain == [10, 4, 11, 10]
    assert ids(cli(*asking, "--template-set", "enable_thinking=false")) == [*plain, 12, 3, 13, 3]
    path.write_text(json.dumps({"messages": messages, "enable_thinking": False}))
    assert ids(cli(*asking)) == [*plain, 12, 3, 13, 3]
    path.write_text(json.dumps({"messages": messages, "tools": [{"type": "function"}]}))
    assert ids(cli(*asking)) == [10, 4, 11, 14, 10]


def test_a_key_that_the_template_never_reads_is_named(cli: Cli, thinking: Path) -> None:
    path = thinking / "chat.json"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}], "effort": "low"}))
    ran = cli("tokenize", "--model", thinking, "--chat", path)
    assert ran.code == 0 and "effort" in ran.err


def test_special_tokens_can_be_added(cli: Cli) -> None:
    """ChatML's ids in cl100k_base (OpenAI's chatml.md): <|im_start|> 100264, <|im_end|> 100265."""
    asking = ("tokenize", "-t", "cl100k_base", "--special", "allow", "--json")
    more = ("--add-special", "<|im_start|>=100264", "--add-special", "<|im_end|>=100265")
    found = ids(cli(*asking, *more, "<|im_start|>hi<|im_end|>"))
    assert (found[0], found[-1], len(found)) == (100264, 100265, 3)
    plain = cli("tokenize", "-t", "cl100k_base", "--special", "allow", "<|im_start|>hi<|im_end|>")
    assert "<|im_start|>, <|im_end|> are none of cl100k_base" in plain.err
    refused = cli(*asking, "--add-special", "nonsense", "hi")
    assert refused.code == 2 and "TOKEN=ID" in refused.err
