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

__version__ = "0.1.0"
__all__ = ["Anatomy", "Dim", "__version__", "load"]

_PLACES = {"Anatomy": "anatomy", "Dim": "dims", "load": "api"}


def __getattr__(name: str) -> Any:
    """Loads the public names on first use, so that importing the package costs nothing."""
    if name not in _PLACES:
        raise AttributeError(f"module 'llmcalc' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"llmcalc.{_PLACES[name]}"), name)
