"""Writes llmcalc/families/index.py: which module describes which ``model_type``.

One model then loads one module.
"""

from __future__ import annotations

from pathlib import Path

from llmcalc.families import registered


def text() -> str:
    """The module's text, from the registrations themselves."""
    modules: dict[str, list[str]] = {}
    for name, module in registered().items():
        modules.setdefault(module, []).append(name)
    lines = [
        '"""Which module describes which ``model_type``: written by scripts/family_index.py."""',
        "",
        "MODULES: dict[str, tuple[str, ...]] = {",
    ]
    for module in sorted(modules):
        names = sorted(modules[module])
        one = (
            f'    "{module}":'
            f" ({', '.join(repr(n) for n in names)}{',' if len(names) == 1 else ''}),".replace(
                "'", '"'
            )
        )
        if len(one) > 100:
            lines.append(f'    "{module}": (')
            lines += [f'        "{n}",' for n in names]
            lines.append("    ),")
        else:
            lines.append(one)
    return "\n".join([*lines, "}", ""])


if __name__ == "__main__":
    (Path(__file__).parents[1] / "llmcalc" / "families" / "index.py").write_text(text())
