"""What shape and cost everything has on the way from token ids to the next token's logits: the list
of parts, walked.

Shapes are those of B sequences of T new tokens with P tokens already in the cache (S = P + T seen).
One multiply-add is 2 FLOP; products with weights and of queries with keys are counted, element-wise
work is not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from llmcalc.anatomy import Anatomy, Mixer, Part, Weight
from llmcalc.dims import Dim, least, product, total
from llmcalc.questions.layer_plan import by_slot, inside, stem

Shape = tuple[Dim, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One operation: what it makes, of which shape, with how many parameters and FLOP.

    ``slot`` names it when run.
    """

    op: str
    part: str
    slot: str
    shape: Shape
    layer: int | None = None
    params: Dim = field(default_factory=lambda: Dim(0))
    flop: Dim = field(default_factory=lambda: Dim(0))

    @property
    def elements(self) -> Dim:
        """Numbers that the operation makes."""
        return product(list(self.shape))


@dataclass(frozen=True, slots=True)
class Ask:
    """How many sequences, how many new tokens each, and how many each has behind it."""

    batch: Dim
    tokens: Dim
    past: Dim = field(default_factory=lambda: Dim(0))

    @property
    def seen(self) -> Dim:
        """Tokens that the last query sees where nothing is masked: S."""
        return self.past + self.tokens if self.past else self.tokens


def ask(batch: int, tokens: int, past: int = 0) -> Ask:
    """The question under the symbols that formulas use."""
    return Ask(Dim(batch, "batch"), Dim(tokens, "tokens"), Dim(past, "past") if past else Dim(0))


def walk(anatomy: Anatomy, a: Ask) -> Iterator[Step]:
    """Every step of a forward pass in order, layer after layer, the last token's logits
    at the end.
    """
    anatomy.explained("the way through them")
    parts = [p for p in anatomy.parts if _on_the_way(p)]
    yield Step("ids", "input_ids", "ids", (a.batch, a.tokens))
    runs = _runs(parts)
    for before, stack in runs[:-1]:
        yield from _steps(before, a, None)
        for layer in sorted({i for p in stack for i in p.layers.indices}):
            yield from _steps([p for p in stack if layer in p.layers.indices], a, layer)
            yield Step("residual", f"layer {layer} out", "layer", _residual(stack, a), layer)
    last = _steps(runs[-1][0], a, None)
    steps = [replace(s, slot="norm.last") if s.slot == "norm.0" else s for s in last]
    yield from steps
    head = next((s for s in steps if s.slot == "head"), None)
    if head is not None:
        yield Step("last token", "next-token logits", "last", (a.batch, head.shape[-1]))


def left_out(anatomy: Anatomy) -> list[Weight]:
    """Weights that text does not pass through: towers for images and sound, multi-token
    prediction.
    """
    return [p for p in anatomy.weights if not _on_the_way(p)]


def _on_the_way(part: Part) -> bool:
    if isinstance(part, Mixer):
        return part.kind != "none" or bool(part.layers.indices)
    return part.text


def _runs(parts: Sequence[Part]) -> list[tuple[list[Part], list[Part]]]:
    """Stacks in order, each with the parts outside that stand before it.

    What stands behind the last one comes last.

    Layers belong together that share the name before their number: an encoder's, then a decoder's.
    """
    runs: list[tuple[list[Part], list[Part]]] = [([], [])]
    prefix: str | None = None
    waiting: list[Part] = []
    for part in parts:
        if not inside(part):
            waiting.append(part)
            continue
        here = part.name.split("{layer}")[0] if isinstance(part, Weight) else prefix
        if prefix is not None and here != prefix:
            runs.append(([], []))
        runs[-1][0].extend(waiting)
        runs[-1][1].append(part)
        waiting, prefix = [], here
    return [*runs, (waiting, [])] if runs[-1][1] else [(waiting, [])]


def _residual(stack: Sequence[Part], a: Ask) -> Shape:
    widths = [w.shape[-1] for w in stack if isinstance(w, Weight) and w.role == "norm"]
    outs = [w.outputs for w in stack if isinstance(w, Weight) and w.role in ("attn.o", "mlp.down")]
    return (a.batch, a.tokens, (widths or outs or [Dim(0)])[0])


def _steps(parts: Sequence[Part], a: Ask, layer: int | None) -> Iterator[Step]:
    """The steps of one layer, or of what stands outside the stack."""
    weights = [p for p in parts if isinstance(p, Weight)]
    slots, _ = by_slot(weights)
    slot_of = {id(w): s for s, w in slots.items()}
    biases = _biases(weights)
    mixer = next((p for p in parts if isinstance(p, Mixer)), None)
    for part in parts:
        if isinstance(part, Mixer):
            yield from (replace(s, layer=layer) for s in _mixing(part, a))
        elif part.op != "add" or stem(part) not in {stem(w) for w in weights if w.op != "add"}:
            step = _weight(part, slot_of[id(part)], a, mixer)
            extra = biases.get(stem(part))
            if extra is not None:
                step = replace(step, params=step.params + extra.per_layer)
            yield replace(step, layer=layer)
            if part.role in ("mlp.up", "mlp.gate_up"):
                yield replace(_activated(part, step), layer=layer)
            elif part.role == "router" and "shared" not in part.name and not part.buffer:
                k = max((w.active for w in weights if ".routed" in slot_of[id(w)]), default=Dim(1))
                yield Step("top-k", "chosen experts", "router.chosen", (step.shape[0], k), layer)
    if any(".routed" in s for s in slots):
        yield Step("join", "experts' outputs, weighted", "mlp.out", _residual(parts, a), layer)


def _biases(weights: Sequence[Weight]) -> dict[str, Weight]:
    """Biases by the module whose product they are added to."""
    products = {stem(w) for w in weights if w.op != "add"}
    return {
        stem(w): w
        for w in weights
        if w.op == "add" and stem(w) in products and not (w.buffer or w.tied_to)
    }


def _weight(w: Weight, slot: str, a: Ask, mixer: Mixer | None) -> Step:
    """What one weight makes of the tokens."""
    name = w.name
    params = Dim(0) if w.tied_to or w.buffer else w.per_layer
    if w.op == "lookup":
        return Step("lookup", name, slot, (a.batch, a.tokens, w.shape[-1]), params=params)
    if w.role == "norm" or w.role.endswith("_norm"):
        return Step("norm", name, slot, _normed(w, a, mixer), params=params)
    if w.op in ("matmul", "conv") and len(w.shape) >= 2:
        return _matmul(w, slot, a, mixer, params)
    return Step("parameter", name, slot, w.shape, params=params)


def _normed(w: Weight, a: Ask, mixer: Mixer | None) -> Shape:
    if mixer is not None and w.role in ("attn.q_norm", "attn.k_norm") and w.shape[-1] == mixer.d_qk:
        heads = mixer.n_heads if w.role == "attn.q_norm" else mixer.n_kv_heads
        return (a.batch, heads, a.tokens, mixer.d_qk)
    return (a.batch, a.tokens, w.shape[-1])


def _matmul(w: Weight, slot: str, a: Ask, mixer: Mixer | None, params: Dim) -> Step:
    out, inn = w.outputs, w.inputs
    if w.op == "conv":
        flop = 2 * a.batch * a.tokens * product(list(w.shape))
        return Step("convolution", w.name, slot, (a.batch, a.tokens, out), params=params, flop=flop)
    rows = a.batch * (a.seen if w.role == "attn.kv_b" else a.tokens)
    routed = w.routed
    flop = 2 * rows * (w.active if routed else Dim(1)) * out * inn
    shape: Shape = (
        (rows * w.active, out)
        if routed
        else (a.batch, a.seen if w.role == "attn.kv_b" else a.tokens, out)
    )
    heads = _heads_of(w, mixer)
    if heads is not None and not routed:
        shape = (a.batch, heads[0], a.tokens, heads[1])
    if w.role == "router" and not w.buffer:
        shape = (rows, out)
    op = "experts" if routed else "matmul"
    return Step(op, w.name, slot, shape, params=params, flop=flop)


def _heads_of(w: Weight, mixer: Mixer | None) -> tuple[Dim, Dim] | None:
    """Heads and their width of a projection into attention alone."""
    if mixer is None or mixer.kind not in ("kv", "shared"):
        return None
    known = {
        "attn.q": (mixer.n_heads, mixer.d_qk),
        "attn.k": (mixer.n_kv_heads, mixer.d_qk),
        "attn.v": (mixer.n_kv_heads, mixer.d_v),
    }
    found = known.get(w.role)
    return found if found is not None and found[0] * found[1] == w.outputs else None


def _activated(w: Weight, step: Step) -> Step:
    """What the activation makes of gate and up."""
    width = step.shape[-1]
    if w.role == "mlp.gate_up":
        width = width // 2
    return Step(
        "activation",
        f"{stem(w).rsplit('.', 1)[0]} activation",
        f"mlp.act{_place(step.slot)}",
        (*step.shape[:-1], width),
    )


def _place(slot: str) -> str:
    return next((p for p in (".routed", ".shared") if slot.endswith(p)), "")


def _mixing(m: Mixer, a: Ask) -> Iterator[Step]:
    """Scores, weights and mix of attention; the state of a recurrent layer."""
    if m.kind == "state" or not m.n_heads:
        for s in m.states:
            yield Step(
                "state", f"{s.kind} state", f"state.{s.kind}", (a.batch, s.channels, s.width)
            )
        return
    seen = m.max_source if m.kind == "cross" and m.max_source is not None else a.seen
    if m.window is not None and a.past:
        seen = least(a.past, m.window) + a.tokens if a.tokens > 1 else least(a.seen, m.window)
    scores = (a.batch, m.n_heads, a.tokens, seen)
    yield Step(
        "scores", "queries · keys", "attn.scores", scores, flop=2 * product(list(scores)) * m.d_qk
    )
    yield Step("softmax", "attention weights", "attn.weights", scores)
    mixed = (a.batch, a.tokens, m.n_heads * m.d_v)
    yield Step("mix", "weights · values", "attn.mix", mixed, flop=2 * product(list(scores)) * m.d_v)


def peak_bound(steps: Sequence[Step], element_bytes: int) -> Dim:
    """A bound on the activations that are alive at once, in bytes: four residual streams and the
    two largest layers' worth of products of one half-layer, or the logits and as much again,
    whichever is more.

    Attention holds queries, keys, values, their turned copies, and scores in three forms (raw,
    masked, float32); the MLP holds gate, up, the activated gate and their product.
    """
    by_layer: dict[int | None, list[Step]] = {}
    for s in steps:
        by_layer.setdefault(s.layer, []).append(s)
    stream = max((int(s.elements) for s in steps if s.op == "residual"), default=0)
    widest = 0
    for layer, inside_layer in by_layer.items():
        if layer is None:
            continue
        attention = sum(
            2 * int(s.elements)
            for s in inside_layer
            if s.slot.startswith(("attn.", "ssm.", "state."))
        )
        attention += sum(4 * int(s.elements) for s in inside_layer if s.op == "scores")
        feed = sum(
            2 * int(s.elements) for s in inside_layer if s.slot.startswith(("mlp.", "router"))
        )
        widest = max(widest, attention, feed)
    logits = sum(3 * int(s.elements) for s in steps if s.slot in ("head", "last"))
    return Dim(max(5 * stream + widest, stream + logits) * element_bytes)


def totals(steps: Sequence[Step]) -> tuple[Dim, Dim]:
    """Parameters passed and FLOP of all steps."""
    return total(s.params for s in steps), total(s.flop for s in steps)
