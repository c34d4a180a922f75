"""The state of a gated delta net."""

from __future__ import annotations

from llmcalc.anatomy import Layers, Parts, State
from llmcalc.blocks import state_mixer
from llmcalc.dims import Dim
from llmcalc.families.parts.frame import BLOCK

DELTA = f"{BLOCK}.linear_attn"


def delta_state(
    layers: Layers,
    channels: Dim,
    d_conv: Dim,
    heads: Dim,
    d_k: Dim,
    d_v: Dim,
    always: bool = False,
) -> Parts:
    """What a gated delta net keeps: a convolution window, and one d_k x d_v matrix per head in
    float32.

    Kimi's delta attention is in float32 in every engine (``always``: vLLM's kda_state_dtype).
    """
    yield state_mixer(
        layers,
        State("conv", channels, d_conv),
        State("recurrent", heads * d_k, d_v, "float32", always),
        n_heads=heads,
    )
