"""Hints that can be followed: what a refusal says to do makes the same question answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcalc.sources import presets
from tests.conftest import Ran

Cli = Callable[..., Ran]
SET = re.compile(r"`--set ([\w.]+)=\.\.\.`")
MODELS = (
    *("gpt2", "llama-3-8b", "qwen3-30b-a3b", "gemma-3-4b", "gemma-4-31b", "deepseek-v3"),
    *("mamba-130m", "qwen3-next-80b-a3b", "gpt-oss-20b", "bert-base-uncased", "t5-small"),
    *("llama-4-scout-17b-16e", "nemotron-h-8b", "lfm2-1.2b", "kimi-linear-48b-a3b"),
    *("llava-1.5-13b", "phi-3-small-8k"),
)


def _sizes(config: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _sizes(value, (*path, key))
        elif isinstance(value, int) and not isinstance(value, bool):
            yield (*path, key)


def _without(config: dict[str, Any], path: tuple[str, ...]) -> tuple[dict[str, Any], int]:
    copy = json.loads(json.dumps(config))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    return copy, inner.pop(path[-1])


@pytest.mark.parametrize("name", MODELS)
def test_a_size_that_is_missing_can_be_set(cli: Cli, tmp_path: Path, name: str) -> None:
    """Every size is taken out of a published config in turn: where ``params`` refuses and names an
    option, that option with the value that was taken out gives the whole config's total.
    """
    config = presets.load(name)
    place = tmp_path / "config.json"
    place.write_text(json.dumps(config))
    whole = json.loads(cli("params", place, "--json").out)["facts"]["total_params"]
    followed = 0
    for path in _sizes(config):
        lacking, value = _without(config, path)
        place.write_text(json.dumps(lacking))
        ran = cli("params", place, "--json")
        if ran.code == 0:
            continue
        found = SET.search(ran.err)
        assert found is not None, (path, ran.err)
        again = cli("params", place, "--json", "--set", f"{found[1]}={value}")
        assert again.code == 0, (path, ran.err, again.err)
        assert json.loads(again.out)["facts"]["total_params"] == whole, (path, ran.err)
        followed += 1
    # sections inside a config have their class's defaults, which a note names
    assert followed >= 3 or any(isinstance(value, dict) for value in config.values())


@pytest.mark.parametrize(
    ("asked", "added"),
    [
        ("fit gpt2", "--device-memory 24GiB"),
        ("dtype --bits 0x3f80", "bf16"),
        ("sample", "--logits 2,1,0.5,-0.5,-1.5"),
        ("tokenize ./no-such-file.txt", "--text"),
    ],
)
def test_what_is_missing_is_named(cli: Cli, asked: str, added: str) -> None:
    refused = cli(*asked.split())
    assert refused.code == 2
    option = next((w for w in added.split() if w.startswith("-")), added)
    assert option in refused.err, refused.err
    first, *rest = asked.split()
    words = (first, added, *rest) if not added.startswith("-") else (first, *rest, *added.split())
    assert cli(*words).code in (0, 1)
