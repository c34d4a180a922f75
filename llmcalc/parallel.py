"""What one rank holds of a model under tensor, pipeline and expert parallelism.

Splits go by role, as Megatron-LM's column and row parallel layers do (arXiv 1909.08053): a matrix
out of a block is cut along its output, one back into the residual stream along its input; whatever
is not named is on every rank.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from llmcalc.anatomy import Anatomy, Mixer, Part, Weight
from llmcalc.dims import Dim, ceil_div, dim, product, total
from llmcalc.errors import InputError

SPLIT = {
    **dict.fromkeys(
        (
            "attn.q",
            "attn.q_b",
            "attn.kv_b",
            "attn.qkv",
            "mlp.gate",
            "mlp.up",
            "mlp.gate_up",
            "cross.q",
        ),
        "out",
    ),
    **dict.fromkeys(("attn.k", "attn.v", "attn.kv", "cross.k", "cross.v", "cross.kv"), "kv"),
    **dict.fromkeys(("attn.o", "mlp.down", "cross.o", "ssm.out"), "in"),
    **dict.fromkeys(("embed.token", "embed.layer", "head"), "vocab"),
    **dict.fromkeys(("attn.sinks", "attn.gate"), "out"),
    **dict.fromkeys(("ssm.in", "ssm.conv", "ssm.a", "ssm.d", "ssm.dt", "ssm.norm"), "out"),
    "ssm.x": "in",
}
"""Role to the side along which a weight is cut."""


def rank_params(anatomy: Anatomy, tp: int = 1, n_kv_heads: int | None = None) -> Dim:
    """Parameters that the fullest rank of ``tp`` holds, tied heads once."""
    return total(
        rank_elements(w, tp, n_kv_heads)
        for w in anatomy.weights
        if not w.tied_to and not w.extra and not w.buffer
    )


def rank_elements(weight: Weight, tp: int, n_kv_heads: int | None = None) -> Dim:
    """Elements of one weight, all layers, on one rank."""
    if tp == 1:
        return weight.params
    return weight.layers.count * weight.experts * product(list(cut_shape(weight, tp, n_kv_heads)))


def cut_shape(weight: Weight, tp: int, n_kv_heads: int | None) -> tuple[Dim, ...]:
    """The shape of one rank's share of a weight; what is not divided is whole on every rank."""
    side = SPLIT.get(weight.role)
    if not weight.shape or side is None:
        return weight.shape
    if side == "in" and len(weight.shape) == 1:
        return weight.shape  # a bias behind a row-parallel matrix is on every rank
    by_rows = side == "in" or weight.op == "lookup"  # a table is cut along its vocabulary
    axis = weight.input_axis if by_rows else weight.output_axis
    parts = min(tp, n_kv_heads) if side == "kv" and n_kv_heads else tp
    size = dim(weight.shape[axis])
    if side == "vocab":
        size = ceil_div(size, 64) * 64  # padded so that every rank's share is a multiple of 64
    share = ceil_div(size, parts)
    return tuple(share if i == axis else s for i, s in enumerate(weight.shape))


def check_heads(mixer: Mixer, tp: int, *, uneven: bool = False) -> None:
    """A degree must divide the query heads, and the key/value heads too or repeat each.

    ``uneven`` rounds those up.
    """
    if mixer.n_heads and mixer.n_heads % tp:
        raise InputError(f"--tp {tp} does not divide {int(mixer.n_heads)} heads")
    n = int(mixer.n_kv_heads)
    if n and not uneven and n % tp and tp % n:
        raise InputError(f"--tp {tp} neither divides {n} key/value heads nor is a multiple of them")


def shared_heads(mixer: Mixer, tp: int, *, ceil: bool = False) -> Mixer:
    """The mixer as one rank of ``tp`` holds it: key/value heads divided, and replicated where there
    are too few.
    """
    if tp == 1 or mixer.kind in ("latent", "shared", "none"):
        return mixer
    check_heads(mixer, tp, uneven=ceil)
    states = tuple(replace(s, channels=ceil_div(s.channels, tp)) for s in mixer.states)
    if not mixer.n_kv_heads:
        return replace(mixer, states=states)
    n = int(mixer.n_kv_heads)
    local = -(-n // tp) if ceil else max(1, n // tp)
    heads = Dim(local, "n_kv_heads_per_rank")
    cached = (
        None
        if mixer.cached_heads is None
        else Dim(int(mixer.cached_heads) // tp, "n_heads_per_rank")
    )
    return replace(
        mixer,
        n_kv_heads=heads,
        keys=heads * mixer.d_qk,
        values=heads * mixer.d_v,
        states=states,
        cached_heads=cached,
    )


def one_rank(anatomy: Anatomy, tp: int) -> Anatomy:
    """The parts as one rank of ``tp`` holds them: smaller matrices, fewer heads."""
    if tp == 1:
        return anatomy
    check_degree(anatomy, tp)
    n_kv = {int(m.n_kv_heads) for m in anatomy.mixers if m.kind == "kv"}
    heads = n_kv.pop() if len(n_kv) == 1 else None
    parts: list[Part] = [
        shared_heads(p, tp) if isinstance(p, Mixer) else replace(p, shape=cut_shape(p, tp, heads))
        for p in anatomy.parts
    ]
    return replace(
        anatomy, parts=tuple(_fewer_queries(p, tp) if isinstance(p, Mixer) else p for p in parts)
    )


def _fewer_queries(mixer: Mixer, tp: int) -> Mixer:
    return replace(mixer, n_heads=Dim(int(mixer.n_heads) // tp, "n_heads_per_rank"))


def check_degree(anatomy: Anatomy, tp: int) -> None:
    """A tensor-parallel degree must divide the heads of every layer, and the channels of every
    state.
    """
    for m in anatomy.mixers:
        check_heads(m, tp, uneven=m.kind != "kv")
        for s in m.states:
            if s.channels % tp:
                raise InputError(
                    f"--tp {tp} does not divide the {int(s.channels)} channels of a state"
                )


def fewer_experts(anatomy: Anatomy, ep: int) -> Anatomy:
    """What one of ``ep`` devices holds where each has whole experts of its own, and all of what is
    no expert.
    """
    return replace(
        anatomy,
        parts=tuple(
            replace(p, experts=ceil_div(p.experts, ep)) if isinstance(p, Weight) and p.routed else p
            for p in anatomy.parts
        ),
    )


def partition(n_layers: int, stages: int) -> list[range]:
    """The layers of each pipeline stage.

    Of a remainder, the last stages but one take one more each.

    Source: vLLM's ``get_pp_indices`` (distributed/utils.py), which spares the last stage, where the
    head is.

    >>> partition(10, 4)
    [range(0, 2), range(2, 5), range(5, 8), range(8, 10)]
    """
    if not 1 <= stages <= n_layers:
        raise InputError(f"--pp {stages} stages for {n_layers} layers")
    sizes = [n_layers // stages] * stages
    for i in range(2, n_layers % stages + 2):
        sizes[-i] += 1
    starts = [sum(sizes[:i]) for i in range(stages + 1)]
    return [range(a, b) for a, b in pairwise(starts)]


def stage(anatomy: Anatomy, stages: int, index: int) -> Anatomy:
    """The parts that one pipeline stage holds: its layers, what stands before them or behind, its
    own tied head.
    """
    if any(m.kind in ("cross", "shared") for m in anatomy.mixers):
        raise InputError(f"how {anatomy.family} is cut into pipeline stages is not known")
    chosen = set(partition(anatomy.n_layers, stages)[index])
    first, last = index == 0, index == stages - 1
    parts: list[Part] = []
    begun = False
    for part in anatomy.parts:
        if isinstance(part, Mixer):
            beside, outside = part.kind == "none", False
        else:
            beside, outside = not part.text, not part.in_stack
        if beside or outside:
            if first if beside or not begun else last:
                parts.append(_apart(part) if isinstance(part, Weight) and last else part)
            continue
        begun = True
        layers = part.layers.only("n_stage_layers", chosen)
        if layers.indices:
            parts.append(replace(part, layers=layers))
    return replace(anatomy, parts=tuple(parts))


def _apart(weight: Weight) -> Weight:
    """A head on a stage of its own: it is stored there, and no longer with the table."""
    return replace(weight, tied_to=None, copy_of=weight.tied_to) if weight.tied_to else weight
