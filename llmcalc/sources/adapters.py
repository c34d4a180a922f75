"""An adapter's own config, as PEFT writes it: its base, and what it adds to which matrices."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError
from llmcalc.sources.json_file import read_json
from llmcalc.text import shorten, shown

WEIGHTS = "adapter_model.safetensors"
_PLAIN = re.compile(r"[\w.]+")
_LARGEST_RANK = 1 << 20


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter: base, rank, the modules it is put on by the ends of their names.

    ``dora`` adds magnitudes; ``whole`` are modules that it replaces; ``odd`` says why no formula is
    applied, where none is.
    """

    base: str | None
    rank: int
    targets: tuple[str, ...]
    ranks: tuple[tuple[str, int], ...] = ()
    dora: bool = False
    whole: tuple[str, ...] = ()
    odd: str | None = None

    def rank_of(self, module: str) -> int:
        """The rank on a module, 0 where it has none."""
        if not any(ends_with(module, target) for target in self.targets):
            return 0
        return next((rank for end, rank in self.ranks if ends_with(module, end)), self.rank)


def ends_with(module: str, target: str) -> bool:
    """Whether a module is meant by a target: its whole name, or its last parts.

    >>> ends_with("model.layers.0.self_attn.q_proj", "q_proj"), ends_with("a.up_proj", "proj")
    (True, False)
    """
    return module == target or module.endswith(f".{target}")


def read(path: Path) -> Adapter:
    """The adapter that an ``adapter_config.json`` describes; LoRA and DoRA, others are refused."""
    raw = read_json(path)
    kind = raw.get("peft_type")
    if kind != "LORA":
        raise InputError(f"{path.name} describes {shown(kind)}; LORA is known")
    rank = raw.get("r")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= _LARGEST_RANK:
        raise InputError(f"{path.name}: r is {shown(rank)}; it must be from 1 to {_LARGEST_RANK}")
    base = raw.get("base_model_name_or_path")
    targets = raw.get("target_modules")
    ranks = raw.get("rank_pattern") or {}
    whole = raw.get("modules_to_save") or []
    own_ranks = ranks.items() if isinstance(ranks, dict) else ()
    return Adapter(
        base=base if isinstance(base, str) and base else None,
        rank=rank,
        targets=tuple(_names(targets)),
        ranks=tuple((module, own) for module, own in own_ranks if _whole(own)),
        dora=raw.get("use_dora") is True,
        whole=tuple(_names(whole)),
        odd=_odd(raw, targets, ranks),
    )


def _names(value: Any) -> list[str]:
    return [v for v in value if isinstance(v, str)] if isinstance(value, list) else []


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _LARGEST_RANK


def _odd(raw: dict[str, Any], targets: Any, ranks: Any) -> str | None:
    """Why the config alone does not say what is added, where it does not.

    A pattern from a file is never run.
    """
    if not isinstance(targets, list):
        return f"target_modules is {shown(targets, 60)}, which is no list of names"
    patterns = [*_names(targets), *(ranks if isinstance(ranks, dict) else ["?"])]
    strange = [p for p in patterns if not _PLAIN.fullmatch(p)]
    if strange:
        return f"{shorten(strange[0], 60)} is a pattern, and patterns of a file are not run"
    for key in (
        "layers_to_transform",
        "target_parameters",
        "layer_replication",
        "trainable_token_indices",
    ):
        if raw.get(key):
            return f"{key} is not described"
    if raw.get("bias") not in (None, "none"):
        return f"bias is {shown(raw.get('bias'))}: which biases it adds is not described"
    return None
