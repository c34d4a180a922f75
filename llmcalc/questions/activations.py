"""What a training step keeps for its backward pass: activations, logits, gathered weights, 16-bit
casts.

``hf``: the tensors that autograd saves for Hugging Face's models (K and V at the width of the
queries), per token and layer; ``megatron``: arXiv 2205.05198, Table 2; ``torchtitan``: every other
product of a layer kept, weights gathered.
"""

from __future__ import annotations

from math import ceil

from llmcalc.anatomy import Anatomy
from llmcalc.errors import InputError
from llmcalc.parallel import partition
from llmcalc.questions.recipe import Part, Recipe
from llmcalc.units import several


class Widths:
    """The widths of one layer: stream, queries, keys and values together, feed-forward, heads.

    And how many layers.
    """

    def __init__(self, anatomy: Anatomy, layer: int) -> None:
        here = [w for w in anatomy.text if w.in_stack and layer in w.layers.indices]
        mixers = [m for m in anatomy.mixers if layer in m.layers.indices and m.n_heads]
        self.stream = anatomy.d_model
        self.queries = sum(int(m.n_heads) * int(m.d_qk) for m in mixers)
        self.kv = sum(int(m.n_kv_heads) * int(m.d_qk) for m in mixers)
        self.heads = sum(int(m.n_heads) for m in mixers)
        down = [w for w in here if w.role == "mlp.down" and w.is_matrix]
        self.feed = sum(int(w.inputs) * int(w.active) for w in down)
        self.gated = any(w.role in ("mlp.gate", "mlp.gate_up") for w in here)


def activations(r: Recipe, whole: Anatomy, here: Anatomy, index: int) -> list[Part]:
    """The parts beside the states, on one rank."""
    n = whole.n_layers
    layers = list(partition(n, r.pp)[index]) if r.pp > 1 else list(range(n))
    kind = r.profile.activations
    found = {"hf": _hf, "megatron": _megatron, "torchtitan": _torchtitan}[kind](
        r, whole, here, layers, index
    )
    last = index == r.pp - 1
    return [*found, _logits(r, whole, last)]


def _logits(r: Recipe, whole: Anatomy, last: bool) -> Part:
    n = r.local_tokens * whole.vocab // r.tp if last else 0
    if r.profile.activations == "megatron":
        return Part(
            "logits", 4 * n // r.loss_chunks, "float32, 4 bytes each (arXiv 2205.05198)", False
        )
    chunks = f", in {r.loss_chunks} chunks" if r.loss_chunks > 1 else ""
    return Part(
        "logits",
        14 * n // r.loss_chunks,
        f"14 bytes each when their loss goes backward{chunks}",
        False,
    )


def _eager(r: Recipe, w: Widths) -> int:
    return 6 * w.heads * r.tokens if r.eager else 0


def kept_per_token(r: Recipe, w: Widths) -> int:
    """Bytes that one token keeps in one layer where nothing is recomputed."""
    h, q, autocast = w.stream, w.queries, r.profile.cast > 0
    f = w.feed if w.gated else w.feed / 2
    if r.lora_rank:
        each = 14 * h + 10 * q + 6 * f if autocast else 20 * h + 12 * q + 6 * f
    else:
        each = (26 * h + 8 * q if autocast else 20 * h + 4 * q) + 8 * f
    scale = 2 if r.profile.weights == 4 and not autocast else 1
    return ceil(each) * scale + _eager(r, w)


def _hf(r: Recipe, whole: Anatomy, here: Anatomy, layers: list[int], index: int) -> list[Part]:
    if r.recompute == "selective":
        raise InputError(
            f"--like {r.like} recomputes all or nothing",
            hint="--recompute full, or --like megatron",
        )
    widths = [Widths(whole, i) for i in layers]
    kept = [kept_per_token(r, w) for w in widths]
    stream = 4 if r.profile.weights == 4 else 2
    params = sum(int(w.params) for w in here.text if w.counted)
    parts = []
    if r.recompute == "full":
        n = sum(stream * w.stream for w in widths) * r.local_tokens
        parts += [
            Part("activations", n, "the input of every layer, recomputed from there", False),
            Part("recomputed", max(kept, default=0) * r.local_tokens, "one layer at a time", False),
        ]
    else:
        parts.append(
            Part(
                "activations",
                sum(kept) * r.local_tokens,
                f"{kept[0] if kept else 0:,} bytes per token and layer",
                False,
            )
        )
    if r.profile.cast and r.base is None:
        head = sum(int(w.params) for w in whole.weights if w.role == "embed.token")
        frozen = bool(r.lora_rank)
        once = r.profile.cast * (head if frozen and r.recompute == "full" else params)
        kept_casts = once if r.recompute == "none" or frozen else 0
        parts.append(
            Part(
                "casts",
                kept_casts,
                "16-bit copies of the weights, alive until the backward pass",
                False,
            )
        )
        parts.append(Part("forward casts", once, "the same at the end of the forward pass", False))
    return parts


def megatron_layer(r: Recipe, w: Widths) -> int:
    """Bytes of one layer and micro-batch by arXiv 2205.05198, Table 2.

    34 is 18 + 4·f/h where f is 4h.
    """
    sbh, t = r.local_tokens * w.stream, r.tp
    square = 5 * w.heads * r.tokens * r.local_tokens
    linear = sbh * 18 + 4 * r.local_tokens * w.feed
    shared = 10 * sbh
    if r.recompute == "full":
        return 2 * sbh // (t if r.sequence_parallel and t > 1 else 1)
    scores = 0 if r.recompute == "selective" or not r.eager else square // t
    if t > 1 and not r.sequence_parallel:
        return shared + (linear - shared) // t + scores
    return linear // t + scores


def _megatron(
    r: Recipe, whole: Anatomy, here: Anatomy, layers: list[int], index: int
) -> list[Part]:
    first = [megatron_layer(r, Widths(whole, i)) for i in layers]
    flying = max(1, r.pp - index)
    n = sum(first) * flying
    if r.interleave > 1 and r.pp > 1:
        n = n * (r.pp * r.interleave + r.pp - 1) // (r.pp * r.interleave)
    sbh = r.local_tokens * Widths(whole, 0).stream
    if index == 0:
        n += sbh * r.pp // r.tp  # the embedding's dropout mask
    if r.pp == 1:
        n += 4 * sbh // r.tp  # the last norm's input, and the head's
    recomputed = (
        [Part("recomputed", max(first, default=0), "one layer at a time", False)]
        if r.recompute == "full"
        else []
    )
    passes = several(flying, "micro-batch", "micro-batches")
    why = f"{several(len(layers), 'layer')}, {passes} in flight (arXiv 2205.05198)"
    return [Part("activations", n, why, False), *recomputed]


def _torchtitan(
    r: Recipe, whole: Anatomy, here: Anatomy, layers: list[int], index: int
) -> list[Part]:
    widths = [Widths(whole, i) for i in layers]
    t = r.local_tokens
    if r.recompute == "none":
        raise InputError(
            "torchtitan recomputes by layer or by operation", hint="--recompute selective or full"
        )
    each = [
        2 * w.stream if r.recompute == "full" else 8 * w.stream + 2 * w.kv + 2 * w.feed
        for w in widths
    ]
    again = max((20 * w.stream + 4 * w.kv + 8 * w.feed for w in widths), default=0) * t
    layer = [
        sum(int(w.per_layer) for w in here.weights if i in w.layers.indices and w.in_stack)
        for i in layers
    ]
    outer = sum(
        int(w.params) for w in here.weights if w.role in ("embed.token", "head") and not w.tied_to
    )
    gathered = 2 * (2 * max(layer, default=0) + outer) if r.zero == 3 or r.dp * r.cp > 1 else 0
    return [
        Part("activations", sum(each) * t // r.tp, "the products that are kept, by layer", False),
        Part("recomputed", again // r.tp, "one layer at a time", False),
        Part("gathered", gathered, "two layers, embedding and head, gathered in bfloat16", False),
    ]
