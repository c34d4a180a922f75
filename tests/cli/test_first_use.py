"""What people do when they first meet a tool: typos, wrong kinds, closed streams, a narrow
terminal.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

import llmcalc
from llmcalc.cli.output import terminal as table
from tests.conftest import Ran

Cli = Callable[..., Ran]
TABLES = [
    ("kvcache", "qwen3-next-80b-a3b", "--ctx", "65536"),
    ("kvcache", "llama-3-8b", "--draft", "llama-3.2-1b"),
    ("kvcache", "llama-3-8b", "--memory", "24GiB"),
    ("speed", "llama-3-8b", "--device", "h100"),
    ("dtype", "fp8", "--value", "0.1,448,465"),
    ("dtype", "int8", "--value=-1,-0.5,0.3"),
    ("dtype", "--model", "gpt2"),
    ("list", "dtypes"),
    ("list", "devices"),
    ("params", "deepseek-v3"),
    ("trace", "llama-3-8b"),
    ("train", "gpt2", "--dp", "4"),
    ("fit", "llama-3-8b", "--device", "h100"),
    ("sample", "--logits", "2,1,0.5", "--like", "vllm", "--top-p", "0.9"),
]


@pytest.mark.parametrize("words", TABLES, ids=" ".join)
@pytest.mark.parametrize("columns", [80, 85, 100, 120, 140])
def test_a_terminal_shows_every_character(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], columns: int
) -> None:
    """Whatever is in a pipe is on a terminal: columns that do not fit continue below, nothing is
    cut.
    """
    screen = io.StringIO()
    monkeypatch.setattr(
        table, "terminal", lambda: Console(width=columns, file=screen, highlight=False)
    )
    piped = cli(*words, "--format", "plain").out
    cli(*words, "--format", "table")
    shown = screen.getvalue()
    assert "…" not in shown and max(map(len, shown.splitlines())) <= columns
    if "--memory" not in words:  # of a grid, what does not fit is said
        lost = Counter(piped.replace(" ", "").replace("\n", "")) - Counter(shown)
        assert not lost, lost


def test_a_grid_says_what_it_leaves_out(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(table, "terminal", lambda: Console(width=80, file=screen, highlight=False))
    cli("kvcache", "llama-3-8b", "--memory", "24GiB", "--format", "table")
    assert "more columns do not fit here" in screen.getvalue()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("speed", "llama-3-8b", "--device", "h100", "--batch", "0"), "--batch is 0"),
        (("speed", "llama-3-8b", "--device", "foo"), "'foo'"),
        (("train", "llama-3-8b", "--lora-rank", "8", "--lora-targets", "q,foo"), "'foo'"),
        (
            ("train", "gpt2", "--train-tokens", "1e9", "--achieved", "1T", "--watts", "-5"),
            "--watts",
        ),
        (("train", "gpt2", "--dp", "2", "--link", "0"), "--link"),
        (("tokenize", "promt.txt", "--count", "--max-tokens", "4000"), "promt.txt"),
        (("tokenize", "docs/promt.md"), "docs/promt.md"),
        (("params", ""), "no MODEL"),
        (("kvcache", "gpt2", "--ctx", "1,2"), "'1,2'"),
        (("kvcache", "gpt2", "--ctx", "5,,"), "'5,,'"),
        (("trace", "--toy", "--layers", "1,2"), "'1,2'"),
        (("params", "https://example.com/openai-community/gpt2"), "no file that is read"),
        (("dtype", "q4_k_m"), "GGUF file type"),
        (("dtype", "q4_k_m", "--params", "8e9"), "GGUF file type"),
        (("trace", "--by-hand", '{"attention": {"X": [[1e200, 2], [3, 4]]}}'), "beyond float64"),
    ],
)
def test_what_is_wrong_is_said(cli: Cli, words: tuple[str, ...], says: str) -> None:
    ran = cli(*words)
    assert ran.code == 2 and says in ran.err and not ran.out


@pytest.mark.parametrize("d", [500, 777, 1000, 1500, 2000])
@pytest.mark.parametrize("arch", ["gpt2", "llama"])
def test_heads_that_nobody_named_divide_the_width(cli: Cli, d: int, arch: str) -> None:
    sizes = ("--arch", arch, "--d", d, "--layers", 2, "--d-ff", 4 * d)
    assert cli("params", *sizes).code == 0
    assert cli("kvcache", *sizes, "--ctx", 8).code == 0


def test_thousands_are_read_as_they_are_printed(cli: Cli) -> None:
    found = [
        json.loads(cli("kvcache", "gpt2", "--ctx", ctx, "--json").out)["facts"]
        for ctx in ("1,024", "1024")
    ]
    assert found[0] == found[1]


def test_an_empty_text_has_no_tokens(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.txt").write_text("words in a file")
    monkeypatch.chdir(tmp_path)
    assert cli("tokenize", "", "--count").out == "0\n"


def test_a_loss_of_wide_weights_is_a_number(cli: Cli) -> None:
    facts = json.loads(cli("trace", "--toy", "--std", 100, "--json").out)["facts"]
    assert 1 < facts["loss"] < 1e12


def test_weights_by_degree_are_those_of_the_table(cli: Cli) -> None:
    for form in ("q4_k_m", "q8_0", "fp8", "nf4"):
        words = ("fit", "llama-3-8b", "--device", "h100", "--weights", form, "--json")
        found = json.loads(cli(*words).out)
        weights = next(row["bytes"] for row in found["rows"] if row["part"].startswith("weights"))
        assert found["facts"]["degree_bytes"]["tensor"]["1"] == weights


@pytest.mark.parametrize(
    "words", [("params", "gpt2"), ("list", "presets"), ("--help",), ("--version",)]
)
def test_a_closed_output(words: tuple[str, ...]) -> None:
    command = f"{sys.executable} -m llmcalc {' '.join(words)} >&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    assert done.returncode == 3 and done.stderr.strip() == "error: the output is closed"


@pytest.mark.parametrize("words", ["tokenize -", "sample --logits-file -"])
def test_a_closed_input(words: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m llmcalc {words} <&-"], capture_output=True, text=True
    )
    assert (
        done.returncode == 3
        and "standard input is closed" in done.stderr
        and "Traceback" not in done.stderr
    )


def test_a_path_with_escapes_does_not_reach_the_terminal(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31mred\nline"
    folder.mkdir()
    (folder / "config.json").write_text(
        '{"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 9}'
    )
    for form in ("plain", "markdown", "table", "csv", "json"):
        ran = cli("params", folder, "--format", form)
        assert ran.code == 0 and "\x1b" not in ran.out + ran.err, form
        assert "red\nline" not in ran.out


def test_every_option_has_a_name_of_its_own() -> None:
    """A name that Typer makes of a variable's is another one on another Python."""
    helpers = ("typer.Option", "size", "number")
    found = 0
    for path in (Path(llmcalc.__file__).parent / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
                calls = [c for c in ast.walk(node.annotation) if isinstance(c, ast.Call)]
                for call in (c for c in calls if ast.unparse(c.func) in helpers):
                    texts = [a.value for a in call.args if isinstance(a, ast.Constant)]
                    assert any(str(x).startswith("--") for x in texts), f"{path.name}:{call.lineno}"
                    found += 1
    assert found > 150


def options_of(command: str) -> dict[str, str]:
    """Every spelling of a command's options, to the first one."""
    from typer.main import get_command

    from llmcalc.cli import _application

    app = get_command(_application([command]))
    found = getattr(app, "commands", {command: app})[command]
    return {name: max(p.opts, key=len) for p in found.params for name in (*p.opts,)}


def test_one_name_for_one_thing() -> None:
    """Where it runs, in which format, and whether: the same option in every command."""
    from llmcalc.cli import COMMANDS

    runs = [c for c in COMMANDS if "--live" in options_of(c) and c != "tokenize"]
    assert len(runs) >= 8
    for command in runs:
        assert "--run-on" in options_of(command), command
    for command in ("params", "kvcache", "check", "trace", "sample"):
        assert "--run-dtype" in options_of(command), command


FLAG = re.compile(r"(?<![\w`-])--[a-z][a-z-]+")


def test_hints_name_options_that_there_are() -> None:
    """An option in a message is one of some command; in `llmcalc X ...` it is one of X."""
    from llmcalc.cli import COMMANDS

    known = {name for command in COMMANDS for name in options_of(command)}
    known |= {"--nproc-per-node", "--no-deps"}  # of torchrun and pip
    checked = 0
    for path in Path(llmcalc.__file__).parent.rglob("*.py"):
        calls = (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call))
        errors = [c for c in calls if ast.unparse(c.func).endswith("Error")]
        for text in (n for e in errors for n in ast.walk(e) if isinstance(n, ast.Constant)):
            if not isinstance(text.value, str):
                continue
            for command, words in re.findall(r"`llmcalc ([a-z]+)([^`]*)`", text.value):
                if command in COMMANDS:
                    assert set(FLAG.findall(words)) <= set(options_of(command)), text.value
            flags = {f for f in FLAG.findall(text.value) if not f.endswith("-")}
            assert flags <= known, f"{path.name}:{text.lineno} {flags - known}"
            checked += len(flags)
    assert checked > 100


def test_every_command_is_whole() -> None:
    """A page, two examples in its help, a place in the manual."""
    from llmcalc.cli import COMMANDS

    docs = Path(__file__).parents[2] / "docs"
    manual = (docs / "man" / "llmcalc.1").read_text()
    for command in COMMANDS:
        page = docs / f"{command}.md" if command != "list" else docs.parent / "README.md"
        assert f"llmcalc {command}" in page.read_text(), command
        assert f"llmcalc {command}".replace("-", "\\-") in manual, command
