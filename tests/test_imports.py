"""Heavy packages are named in one place each, and everything says what it is for."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1] / "llmcalc"
HEAVY = {
    "rich": {"cli/output/terminal.py"},
    "torch": {
        *(f"live/{p.name}" for p in (ROOT / "live").glob("*.py")),
        *(f"cli/{n}/live.py" for n in ("trace", "sample", "dtype")),
    },
    "transformers": set(),
    "numpy": {
        "sources/logits.py",
        "cli/dtype/blocks.py",
        *(f"cli/trace/{n}.py" for n in ("toy", "matrices", "by_hand")),
        *(f"formats/codecs/{p.name}" for p in (ROOT / "formats" / "codecs").glob("*.py")),
        *(f"course/{p.name}" for p in (ROOT / "course").glob("*.py")),
        *(f"values/{p.name}" for p in (ROOT / "values").glob("*.py")),
        *(f"sampling/{n}.py" for n in ("candidates", "changes", "cuts", "draw", "engines")),
    },
    "ml_dtypes": {"formats/codecs/scalar.py"},
    "matplotlib": {"cli/output/plot.py"},
    "huggingface_hub": {"sources/hub.py"},
    "tokenizers": {"tokens/fast.py"},
    "gguf": {"formats/codecs/ggml.py"},
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


def test_heavy_packages_have_one_place() -> None:
    files = sorted(ROOT.rglob("*.py"))
    assert len(files) > 40
    for path in files:
        relative = path.relative_to(ROOT)
        for name in imported(ast.parse(path.read_text())):
            top = name.partition(".")[0]
            if top in HEAVY:
                assert str(relative) in HEAVY[top], f"{relative} imports {top}"


def test_every_file_and_every_public_definition_says_what_it_is_for() -> None:
    for path in ROOT.rglob("*.py"):
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path.name
        public = [
            n
            for n in tree.body
            if isinstance(n, ast.FunctionDef | ast.ClassDef) and not n.name.startswith("_")
        ]
        methods = [
            m
            for c in public
            if isinstance(c, ast.ClassDef)
            for m in c.body
            if isinstance(m, ast.FunctionDef)
        ]
        for node in [*public, *(m for m in methods if not m.name.startswith("_"))]:
            assert ast.get_docstring(node), f"{path.name}: {node.name}"
