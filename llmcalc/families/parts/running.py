"""How a family is run, as its config says: epsilon, activation, rotary positions, routers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmcalc.config import Config
from llmcalc.errors import UnavailableError

if TYPE_CHECKING:
    from llmcalc.forward import Clamp, Forward, Rotary, Router

_EPS = ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps")


_GGUF_EPS = ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon")


ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation")


def first_given(c: Config, keys: tuple[str, ...], otherwise: Any) -> Any:
    """The value of the first key that the file or the class gives, else ``otherwise``."""
    for source in (c.raw, c.defaults):
        for key in keys:
            if source.get(key) is not None:
                return source[key]
    return otherwise


def number(c: Config, key: str, otherwise: float = 1.0) -> float:
    """A key's number; text or a list in its place is an UnavailableError."""
    value = first_given(c, (key,), otherwise)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnavailableError(f"{c.family}: {key} is {value!r}, not a number")
    return float(value)


def common(c: Config, **changes: Any) -> Forward:
    """RMSNorm before, rotary positions, the config's activation and epsilon.

    ``changes`` are the family's own.
    """
    from llmcalc.forward import Forward  # on use: counting needs none of it

    eps = first_given(c, (*_EPS, *_GGUF_EPS), 1e-6)
    activation = str(first_given(c, ACTIVATIONS, "silu"))
    return Forward(**{"eps": float(eps), "activation": activation, **changes})


def rotary(
    c: Config,
    dim: int,
    base: float = 10_000.0,
    layer_type: str = "full_attention",
    partial: float = 1.0,
    interleaved: bool = False,
) -> Rotary:
    """Rotary positions as a config states them:

    ``rope_parameters``, or ``rope_theta`` with ``rope_scaling``.

    ``dim`` is the width of a head and ``partial`` the share of it that turns where the config does
    not say.
    """
    from llmcalc.forward import Rotary  # on use: counting needs none of it

    given = first_given(c, ("rope_parameters", "rope_scaling"), {})
    given = given if isinstance(given, Mapping) else {}
    if isinstance(given.get(layer_type), Mapping):
        given = given[layer_type]
    theta = given.get("rope_theta") or first_given(
        c, ("rope_theta", "rotary_emb_base", "rope.freq_base"), base
    )
    share = given.get("partial_rotary_factor")
    share = (
        first_given(c, ("partial_rotary_factor", "rotary_pct"), partial) if share is None else share
    )
    kind = str(given.get("rope_type", given.get("type", "default")))
    context = int(first_given(c, ("max_position_embeddings", "context_length", "n_positions"), 0))
    settings = dict(given)
    original = first_given(c, ("original_max_position_embeddings",), None)
    if original is not None:
        settings["original_max_position_embeddings"] = original
    if c.raw.get("rope.scaling.type") not in (None, "none"):
        kind, settings = _gguf_scaling(c)
    if kind == "su":
        kind = "longrope"
    return Rotary(
        dim=int(dim * share),
        base=float(theta),
        kind=kind,
        settings=settings,
        interleaved=interleaved,
        max_context=context,
    )


def _gguf_scaling(c: Config) -> tuple[str, dict[str, Any]]:
    kind = str(c.raw["rope.scaling.type"])
    settings = {
        "factor": c.raw.get("rope.scaling.factor", 1.0),
        "original_max_position_embeddings": c.raw.get("rope.scaling.original_context_length"),
    }
    return kind, settings


def in_pairs(c: Config) -> bool:
    """Whether the file's queries and keys lie in neighbouring pairs: llama.cpp's converter turns
    Llama's that way.
    """
    return bool(c.raw.get("rope_interleave"))


def normalised(normalise: bool) -> Router:
    """A softmax over all experts, the chosen ones made to sum to one where ``normalise``."""
    return router(normalise=normalise)


def router(**settings: Any) -> Router:
    """How tokens find their experts."""
    from llmcalc.forward import Router  # on use: counting needs none of it

    return Router(**settings)


def clamp(slope: float, limit: float) -> Clamp:
    """The bounds of a clipped SwiGLU (gpt-oss)."""
    from llmcalc.forward import Clamp  # on use: counting needs none of it

    return Clamp(slope, limit)
