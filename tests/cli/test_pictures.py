"""Pictures as text and as files, and outputs written as they look."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcalc.cli.output.draw import as_text, draw
from llmcalc.cli.output.picture import Bars, Bits, Curves, Heat, Histogram, Picture, Stack
from llmcalc.cli.output.pictures import MOST_BARS, as_bars, fewer
from llmcalc.cli.output.view import width
from llmcalc.text import safe
from tests.conftest import Ran

Cli = Callable[..., Ran]
ANSWERS = {
    "params": ("params", "gpt2"),
    "tensors": ("params", "gpt2", "--tensors"),
    "cache": ("kvcache", "gemma-3-27b", "--ctx", "32768"),
    "memory": ("kvcache", "llama-3-8b", "--memory", "24GiB"),
    "fit": ("fit", "llama-3-8b", "--device", "h100", "--ctx", "8192", "--engine", "vllm"),
    "train": ("train", "gpt2", "--tokens", "1024"),
    "speed": ("speed", "llama-3-8b", "--device", "h100", "--batches", "1,64"),
    "formats": ("dtype",),
    "format": ("dtype", "bf16"),
    "bytes": ("dtype", "--params", "7e9"),
    "model": ("dtype", "--model", "gpt2"),
    "sample": ("sample", "--logits", "2,1,0.5,-0.5", "--temperature", "0.5,1"),
    "trace": ("trace", "gpt2"),
    "toy": ("trace", "--toy"),
    "hand": ("trace", "--by-hand", "attention"),
    "head": ("trace", "--live", "--attention", "0.1"),
    "tokenizers": ("tokenize", "--compare", "gpt2,r50k_base", "two words"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_every_picture_fits(cli: Cli, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    lines = len(cli(*ANSWERS[name]).out.splitlines())
    for columns in (60, 80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        ran = cli(*ANSWERS[name], "--plot", "-")
        empty, *drawn = ran.out.splitlines()[lines:]
        assert not empty and len(drawn) >= 2
        assert max(width(line) for line in drawn[1:]) <= columns


@pytest.mark.parametrize("name", ANSWERS)
def test_every_picture_is_a_file_too(cli: Cli, tmp_path: Path, name: str) -> None:
    first, second, png = tmp_path / "a.svg", tmp_path / "b.svg", tmp_path / "a.png"
    for path in (first, second, png):
        cli(*ANSWERS[name], "--plot", path)
    assert first.read_text().rstrip().endswith("</svg>") and png.read_bytes().startswith(b"\x89PNG")
    assert first.read_text() == second.read_text()  # the same answer is the same file


@pytest.mark.parametrize("suffix", ["html", "svg", "md"])
def test_export_writes_what_is_shown(cli: Cli, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    ran = cli("params", "gpt2", "--plot", "-", "--export", path)
    text = path.read_text()
    assert ran.code == 0 and "124,439,808" in ran.out
    for word in ("124,439,808", "38,597,376", "████"):
        assert word in re.sub(r"&#160;", " ", text), word
    addresses = set(re.findall(r"https?://[^\s\"')]+", text))
    written = {"http://www.w3.org/2000/svg", "https://www.textualize.io"}  # a namespace, a comment
    assert addresses <= written and "url(http" not in text and "@font-face" not in text


def test_hostile_names_stay_text(cli: Cli, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    numpy = pytest.importorskip("numpy")
    file, path = tmp_path / "m.safetensors", tmp_path / "out.html"
    save_file({"<script>alert(1)</script>\x1b[31m": numpy.ones((2, 2), numpy.float32)}, file)
    assert cli("params", file, "--export", path, "--plot", "-").code == 0
    assert "<script>" not in path.read_text() and "\x1b" not in path.read_text()
    assert cli("params", file, "--plot", tmp_path / "p.svg").code == 0
    assert "<script>" not in (tmp_path / "p.svg").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("params", "gpt2", "--plot", "x.doc"), "x.doc"),
        (("params", "gpt2", "--export", "x.doc"), "x.doc"),
        (("params", "gpt2", "--plot", "-", "--json"), "--plot"),
        (("params", "gpt2", "--plot", "nowhere/at/all.svg"), "nowhere"),
        (("params", "gpt2", "--export", "nowhere/at/all.svg"), "nowhere"),
        (("list", "presets", "--plot", "-"), "no picture"),
        (("trace", "--by-hand", "gelu", "--plot", "-"), "no picture"),
    ],
)
def test_wrong_input_is_one_line(cli: Cli, words: tuple[str, ...], says: str) -> None:
    ran = cli(*words)
    assert ran.code == 2 and says in ran.err.splitlines()[0] and not ran.out


FLOATS = st.floats(0, 1e15)
NAMES = st.text(max_size=30)


def pictures() -> st.SearchStrategy[Picture]:
    """Pictures of any content."""
    many = st.lists(st.tuples(NAMES, FLOATS), min_size=1, max_size=6)
    points = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=30)
    return st.one_of(
        many.map(lambda xs: Bars("t", [n for n, _ in xs], [("a", [v for _, v in xs])], "u")),
        st.lists(st.tuples(NAMES, many), min_size=1, max_size=3).map(
            lambda bars: Stack("t", bars, "u", limit=("l", 5.0))
        ),
        st.tuples(points, st.booleans(), st.booleans()).map(
            lambda a: Curves(
                "t", "x", "y", [("line", a[0])], [("p", *a[0][0])], log_x=a[1], log_y=a[2]
            )
        ),
        st.lists(st.lists(st.floats(0, 2), min_size=4, max_size=4), min_size=1, max_size=5).map(
            lambda rows: Heat(
                "t", [str(i) for i in range(len(rows))], ["a", "bb", "1,024", ""], rows
            )
        ),
        st.lists(st.integers(0, 10**9), min_size=1, max_size=9).map(
            lambda counts: Histogram("t", [float(i) for i in range(len(counts) + 1)], counts)
        ),
        st.lists(st.integers(0, 9), min_size=3, max_size=3).map(
            lambda n: Bits(
                "t", [("f", list(zip(("sign", "exponent", "mantissa"), n, strict=True)))]
            )
        ),
    )


@given(pictures(), st.integers(60, 220))
def test_any_picture_can_be_drawn(picture: Picture, columns: int) -> None:
    for line in draw(picture, columns):
        text = as_text([line])
        assert "\n" not in text and "\x1b" not in text and text == safe(text)


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=200))
def test_bars_that_are_gathered_keep_their_sum(values: list[int]) -> None:
    rows = [{"name": str(i), "n": n} for i, n in enumerate(values)]
    bars = fewer(as_bars("t", rows, "name", "n", "u", str))
    assert len(bars.labels) <= MOST_BARS and sum(bars.series[0][1]) == pytest.approx(sum(values))


@given(st.lists(st.floats(0.001, 1e9), min_size=2, max_size=8))
def test_a_longer_bar_is_more(values: list[float]) -> None:
    picture = Bars("t", [str(i) for i in range(len(values))], [("a", values)], "u")
    lengths = [line[1][0].count("█") for line in draw(picture, 100)[1:]]
    order = sorted(range(len(values)), key=lambda i: values[i])
    assert [lengths[i] for i in order] == sorted(lengths)
