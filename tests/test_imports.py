"""Imports go downwards only, and heavy packages are named in one place each."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "llmcalc"
LEVELS = {
    **dict.fromkeys(("errors", "dims", "units", "dtypes", "text"), 0),
    **dict.fromkeys(("anatomy", "config", "style"), 1),
    "blocks": 2,
    "families": 3,
    **dict.fromkeys(("sources", "calc", "tokens", "sampling", "values", "course"), 4),
    **dict.fromkeys(("live", "api"), 5),
    **dict.fromkeys(("cli", "__main__", "__init__"), 6),
}
HEAVY = {
    "rich": {"cli/table.py"},
    "torch": {
        *(f"live/{p.name}" for p in (ROOT / "live").glob("*.py")),
        *(f"cli/{n}_live.py" for n in ("trace", "sample", "dtype")),
    },
    "transformers": set(),
    "numpy": {
        "sources/logits.py",
        "cli/dtype_blocks.py",
        "cli/trace_course.py",
        "cli/matrices.py",
        "cli/by_hand.py",
        *(f"course/{p.name}" for p in (ROOT / "course").glob("*.py")),
        *(f"values/{p.name}" for p in (ROOT / "values").glob("*.py")),
        *(f"sampling/{n}.py" for n in ("candidates", "changes", "cuts", "draw", "engines")),
    },
    "ml_dtypes": {"values/scalar.py"},
    "matplotlib": {"cli/drawing/plot.py"},
    "huggingface_hub": {"sources/hub.py"},
    "tokenizers": {"tokens/fast.py"},
    "gguf": {"values/ggml.py"},
    "sentencepiece": {"tokens/sentencepiece.py"},
    "pyarrow": {"tokens/corpus.py"},
    "jinja2": {"tokens/rendering.py"},
    "tiktoken": {"tokens/encodings.py", "tokens/find.py"},
}


def imported(tree: ast.AST) -> list[str]:
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            module = node.module or ""
            names += [f"{module}.{a.name}" if module == "llmcalc" else module for a in node.names]
    return names


def test_levels_and_heavy_packages() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 40
    for path in files:
        relative = path.relative_to(ROOT)
        here = relative.parts[0].removesuffix(".py")
        for name in imported(ast.parse(path.read_text())):
            top, *rest = name.split(".")
            if top in HEAVY:
                assert str(relative) in HEAVY[top], f"{relative} imports {top}"
            if top == "llmcalc" and rest and rest[0] in LEVELS and here != "__init__":
                assert LEVELS[rest[0]] <= LEVELS[here], f"{relative} imports {name}"
                assert not (here == "calc" and rest[0] in ("sources", "tokens", "sampling", "values")), (
                    f"{relative} imports {name}"
                )


def test_no_file_is_long_and_no_function_either() -> None:
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        limit = 400 if "families" not in path.parts else 460
        assert text.count("\n") <= limit, f"{path.name} has {text.count(chr(10))} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                assert (node.end_lineno or 0) - node.lineno + 1 <= 50, f"{path.name}: {node.name}"


def test_every_file_and_every_public_definition_says_what_it_is_for() -> None:
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path.name
        public = [n for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")]
        methods = [m for c in public if isinstance(c, ast.ClassDef) for m in c.body if isinstance(m, ast.FunctionDef)]
        for node in [*public, *(m for m in methods if not m.name.startswith("_"))]:
            assert ast.get_docstring(node), f"{path.name}: {node.name}"
