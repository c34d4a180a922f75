"""What is not described is refused, by name."""

from __future__ import annotations

from llmcalc.config import Config
from llmcalc.errors import ConfigError


def refuse(c: Config, key: str, what: str) -> None:
    """An error for a variant under the same model_type whose tensors are not described."""
    if c.raw.get(key):
        raise ConfigError(
            f"{c.family}: {what} ({key}) are not described",
            hint="name the checkpoint file for its exact count",
        )
