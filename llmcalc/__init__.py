"""Model anatomy and memory arithmetic for language models.

>>> import llmcalc
>>> llmcalc.load("gpt2").params
124439808
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmcalc.anatomy import Anatomy as Anatomy
    from llmcalc.api import load as load
    from llmcalc.dims import Dim as Dim
    from llmcalc.errors import InputError as InputError
    from llmcalc.errors import LlmcalcError as LlmcalcError
    from llmcalc.questions.load import Settings as Settings
    from llmcalc.questions.recipe import Recipe as Recipe
    from llmcalc.tokens import count_texts as count_texts
    from llmcalc.units import parse_bytes as parse_bytes
    from llmcalc.units import size as size

__version__ = "0.1.0"
_PLACES = {
    "Anatomy": "anatomy",
    "Dim": "dims",
    "InputError": "errors",
    "LlmcalcError": "errors",
    "Recipe": "questions.recipe",
    "Settings": "questions.load",
    "count_texts": "tokens",
    "load": "api",
    "parse_bytes": "units",
    "size": "units",
}
__all__ = [
    "Anatomy",
    "Dim",
    "InputError",
    "LlmcalcError",
    "Recipe",
    "Settings",
    "__version__",
    "count_texts",
    "load",
    "parse_bytes",
    "size",
]


def __getattr__(name: str) -> Any:
    """Loads the public names on first use, so that importing the package costs nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module 'llmcalc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"llmcalc.{_PLACES[name]}"), name)
