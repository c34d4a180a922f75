"""No engine: the cache as papers count it."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Anatomy
from llmcalc.engines.base import Engine, Rules
from llmcalc.engines.cache import Cache, Load, gathered
from llmcalc.engines.library import working
from llmcalc.engines.plain import local_mixers, plain_row, seen

RULES = "no engine: tokens that a query can see, nothing rounded"


def formula(anatomy: Anatomy, load: Load) -> Cache:
    """The cache as papers count it."""
    local = [replace(m, window=m.window or m.sight) for m in local_mixers(anatomy, load)]
    rows = [plain_row(m, load, seen(m, load)) for m in local]
    return gathered("formula", RULES, rows, load.context)


ENGINE = Engine(
    name="formula",
    versions=(Rules(name=RULES, source="papers", cache=formula, working=working),),
)
