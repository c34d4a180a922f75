"""The library in two calls: a model by name, and its list of parts."""

from __future__ import annotations

from llmcalc.anatomy import Anatomy
from llmcalc.calc.params import active, parameters
from llmcalc.dims import Dim
from llmcalc.sources import Model, resolve


class Loaded:
    """A model and what can be asked of it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @property
    def anatomy(self) -> Anatomy:
        """The list of parts."""
        return self.model.anatomy

    @property
    def params(self) -> Dim:
        """Parameters, tied weights once.

        >>> load("gpt2").params.formula
        'V·d + C·d + L·(12d² + 13d) + 2d'
        """
        return parameters(self.anatomy)

    @property
    def active_params(self) -> Dim:
        """Parameters that one token passes through, the input embedding included."""
        return active(self.anatomy)


def load(name: str) -> Loaded:
    """The model behind a preset's name, a file or a directory.

    >>> load("deepseek-v3").params
    671026404352
    """
    return Loaded(resolve(name))


def anatomy(name: str) -> Anatomy:
    """The list of parts of a model, by its name.

    >>> [m.kind for m in anatomy("gpt2").mixers]
    ['kv']
    """
    return resolve(name).anatomy
