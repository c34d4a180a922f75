"""Writes llmcalc/families/defaults.json: class defaults of all sizes in configs, by model_type.

A key that is absent from a published config.json means the default of the reference
implementation's config class, which differs from class to class. This script reads those defaults
from the classes' own fields (transformers is needed to run it, not to use llmcalc): ``python
scripts/reference_defaults.py``.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LEFT_OUT = re.compile(
    r"dropout|initializer|_token_id$|_token_index$|token_index|use_cache|pdrop|^return_"
    r"|^output_|gradient_checkpointing|^id2label|^label2id|^problem_type|^architectures|^dtype"
    r"|chunk_size_feed|_loss|^name_or_path|is_encoder_decoder|^time_step_(min|max|floor|limit)"
    r"|layerdrop|^summary|router_jitter|^pretraining_tp|classifier|pooler|^mask_|^apply_spec"
    r"|^transformers_version|^use_bfloat16|^torchscript|^is_composition"
)


def plain(value: object) -> bool:
    """Whether a default is something JSON can hold."""
    return value is None or isinstance(value, bool | int | float | str | list | tuple | dict)


def defaults_of(cls: type) -> dict[str, object]:
    """The raw field defaults of a config class, before anything is derived from them."""
    found: dict[str, object] = {}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if field.name.startswith("_") or LEFT_OUT.search(field.name):
            continue
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        if value is not dataclasses.MISSING and plain(value):
            found[field.name] = value
    for key, sub in (getattr(cls, "sub_configs", None) or {}).items():
        name = getattr(sub, "model_type", "") or getattr(
            getattr(sub, "default", None), "model_type", ""
        )
        found[f"{key}.model_type"] = name
    return found


def main() -> None:
    """Writes the table."""
    table = {}
    for name in sorted(CONFIG_MAPPING.keys()):
        try:
            cls = CONFIG_MAPPING[name]
            table[name] = defaults_of(cls)
        except Exception as error:  # a class with its own requirements is left out, and said
            print(f"{name}: {error}")
    wanted = json.loads((Path(__file__).parent / "reference_types.json").read_text())
    subs = {
        v for n in wanted for k, v in table.get(n, {}).items() if k.endswith(".model_type") and v
    }
    kept = {n: table[n] for n in sorted({*wanted, *subs}) if n in table}
    out = Path(__file__).parents[1] / "llmcalc" / "families" / "defaults.json"
    lines = ",\n".join(
        f'"{name}": {json.dumps(values, sort_keys=True)}' for name, values in kept.items()
    )
    out.write_text("{\n" + lines + "\n}\n")
    print(
        f"{len(kept)} types from transformers {transformers.__version__}, {out.stat().st_size}"
        " bytes"
    )


if __name__ == "__main__":
    main()
