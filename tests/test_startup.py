"""The arithmetic starts without the heavy packages; the twin shows that this test can fail."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = (
    "rich",
    "torch",
    "numpy",
    "pydantic",
    "huggingface_hub",
    "transformers",
    "tokenizers",
    "tiktoken",
    "difflib",
    "csv",
)


def loaded(*words: str) -> set[str]:
    code = (
        "import sys; from llmcalc.cli import main\n"
        f"code = main({list(words)!r})\n"
        "print('LOADED', *sorted({m.split('.')[0] for m in sys.modules}))\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOADED"))
    return set(line.split())


@pytest.mark.parametrize(
    "words", [("params", "gpt2", "--json"), ("params", "--d", "768", "--layers", "12", "--json")]
)
def test_params_as_json_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    assert not loaded(*words) & set(HEAVY) - {"difflib", "csv"}


def test_params_loads_no_engine() -> None:
    """Engines' own words are for commands that ask engines; the twin shows that this can fail."""
    assert not _modules("params", "gpt2", "--json") & {"llmcalc.engines.vllm"}
    assert _modules("kvcache", "gpt2", "--json") & {"llmcalc.engines.vllm"}


def _modules(*words: str) -> set[str]:
    code = (
        "import sys; from llmcalc.cli import main\n"
        f"main({list(words)!r})\n"
        "print('LOADED', *(m for m in sys.modules if m.startswith('llmcalc.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_one_model_loads_one_family() -> None:
    code = (
        "import sys, llmcalc; llmcalc.load('gpt2').params;"
        "print(*[m for m in sys.modules if m.startswith('llmcalc.families.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = {m for m in done.stdout.split() if not m.startswith("llmcalc.families.parts")}
    assert found == {"llmcalc.families.index", "llmcalc.families.openai"}


def test_a_table_does_load_rich_so_the_test_above_can_fail() -> None:
    assert "rich" in loaded("params", "gpt2", "--format", "table")
