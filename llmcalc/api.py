"""The library in two calls: a model by name, and its list of parts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.questions.params import active, parameters
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


def load(name: str | Mapping[str, Any], **sizes: Any) -> Loaded:
    """The model behind a preset's name, a file, a directory or a hub id, or a config itself; ``sizes`` change it.

    A size goes by our name or by the config's own key, as ``--set`` takes it. A wrong name or size is an InputError.

    >>> load("deepseek-v3").params
    671026404352
    >>> load("gpt2", n_layers=24).params
    209494272
    >>> sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 10, "n_positions": 6}
    >>> load({"model_type": "gpt2", **sizes}).params
    1888
    """
    changes = [f"{key}={json.dumps(value)}" for key, value in sizes.items()]
    if isinstance(name, str):
        return Loaded(resolve(name, overrides=changes))
    from llmcalc.sources.config_json import override

    return Loaded(Model("config", "a config", override(name, changes)))
