"""What training takes: weights, gradients, master copies, optimizer states, activations, logits.

And its peak.

States are exact by the named profile; activations follow the formula of the source that the profile
names. Sources: ZeRO (arXiv 1910.02054), Megatron-LM's activation recomputation (arXiv 2205.05198),
and the tensors that autograd saves for Hugging Face's Llama, measured byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import product
from llmcalc.errors import InputError
from llmcalc.formats.stored import Format
from llmcalc.formats.stored import stored as stored_as
from llmcalc.parallel import fewer_experts, one_rank, stage
from llmcalc.questions.activations import activations
from llmcalc.questions.adapters import added
from llmcalc.questions.recipe import OPTIMIZERS, PROFILES, RECOMPUTE, SMALL, Optimizer, Part, Recipe


@dataclass(frozen=True, slots=True)
class Peak:
    """A moment of a step, and what is held then, by name."""

    moment: str
    held: tuple[tuple[str, int], ...]

    @property
    def n_bytes(self) -> int:
        """All that is held then."""
        return sum(n for _, n in self.held)


@dataclass(frozen=True, slots=True)
class Training:
    """The answer for one rank."""

    parts: tuple[Part, ...]
    peaks: tuple[Peak, ...]
    params: int
    trainable: int

    @property
    def peak(self) -> Peak:
        """The largest of the moments."""
        return max(self.peaks, key=lambda p: p.n_bytes)

    def part(self, name: str) -> int:
        """Bytes of one kind."""
        return sum(p.n_bytes for p in self.parts if p.name == name)


def check(r: Recipe, anatomy: Anatomy) -> None:
    """Degrees, names and combinations that cannot be are InputErrors."""
    if r.like not in PROFILES:
        raise InputError(f"--like {r.like!r} is not one of {', '.join(PROFILES)}")
    if r.optimizer not in OPTIMIZERS:
        raise InputError(
            f"no optimizer is called {r.optimizer!r}", hint=f"known: {', '.join(OPTIMIZERS)}"
        )
    if r.recompute not in RECOMPUTE:
        raise InputError(f"--recompute {r.recompute!r} is not one of {', '.join(RECOMPUTE)}")
    for flag in (
        "tokens",
        "micro_batch",
        "dp",
        "tp",
        "pp",
        "cp",
        "ep",
        "interleave",
        "loss_chunks",
    ):
        if getattr(r, flag) < 1:
            raise InputError(
                f"--{flag.replace('_', '-')} is {getattr(r, flag)}; it must be at least 1"
            )
    if r.zero not in (0, 1, 2, 3):
        raise InputError(f"--zero {r.zero} is not one of 0, 1, 2 and 3")
    if r.tokens * r.micro_batch % r.cp:
        raise InputError(f"--cp {r.cp} does not divide {r.tokens * r.micro_batch} tokens")
    if r.ep > 1 and r.dp * r.cp % r.ep:
        raise InputError(f"--ep {r.ep} does not divide the {r.dp * r.cp} data-parallel ranks")
    if r.tp > 1 and r.profile.activations == "hf":
        raise InputError(
            f"what {r.like} keeps for the backward pass under tensor parallelism is not known",
            hint="--like megatron",
        )
    if r.lora_rank and r.profile.activations != "hf":
        raise InputError(
            f"LoRA is not described under --like {r.like}", hint="--like accelerate or --like bf16"
        )
    for target in r.lora_targets:
        if not any(_targeted(w, (target,)) for w in anatomy.weights if w.op == "matmul"):
            raise InputError(
                f"--lora-targets {target!r} is nothing of this model",
                hint=f"known: {', '.join(TARGETS)}",
            )
    if anatomy.n_layers < r.pp:
        raise InputError(f"--pp {r.pp} stages for {anatomy.n_layers} layers")


def rank_of(r: Recipe, anatomy: Anatomy, index: int = 0) -> Anatomy:
    """What one rank holds before data parallelism shards it: its stage, its share of matrices, its
    experts.
    """
    found = stage(anatomy, r.pp, index) if r.pp > 1 else anatomy
    found = fewer_experts(found, r.ep) if r.ep > 1 else found
    return one_rank(found, r.tp)


def stored(anatomy: Anatomy) -> list[Weight]:
    """The weights that are parameters here, tied ones once."""
    return [w for w in anatomy.text if w.counted]


def adapters(r: Recipe, anatomy: Anatomy) -> int:
    """Parameters of LoRA or DoRA on every matrix inside the layers that is adapted."""

    def rank_of(weight: Weight) -> int:
        fits = weight.op == "matmul" and weight.in_stack and _targeted(weight, r.lora_targets)
        return r.lora_rank if fits else 0

    return sum(int(x.params) for x in added(anatomy, rank_of, r.dora))


TARGETS: Mapping[str, tuple[str, ...]] = {
    "q": ("attn.q", "attn.q_b"),
    "k": ("attn.k",),
    "v": ("attn.v",),
    "o": ("attn.o",),
    "gate": ("mlp.gate",),
    "up": ("mlp.up",),
    "down": ("mlp.down",),
    "qkv": ("attn.qkv",),
    "mlp": ("mlp.gate", "mlp.up", "mlp.down", "mlp.gate_up"),
    "all": (
        "attn.q",
        "attn.k",
        "attn.v",
        "attn.o",
        "attn.qkv",
        "mlp.gate",
        "mlp.up",
        "mlp.down",
        "mlp.gate_up",
    ),
}


def _targeted(weight: Weight, targets: Sequence[str]) -> bool:
    roles = [role for t in targets for role in TARGETS.get(t.removesuffix("_proj"), (t,))]
    return weight.role in roles


def optimizer_bytes(o: Optimizer, weights: Sequence[Weight], moment: int) -> int:
    """Bytes of an optimizer's states over some weights, tensor by tensor."""
    total = Fraction(0)
    for w in weights:
        elements, each = int(w.params), int(product(list(w.shape)))
        copies = elements // each if each else 0
        two = len(w.shape) == 2
        if o.factored and two:
            total += 4 * (int(w.inputs) + int(w.outputs)) * copies
        elif o.eight_bit and each >= SMALL:
            total += o.moments * Fraction(elements) * (1 + Fraction(4, 256))
        elif o.matrices and not (two and w.in_stack):
            total += 2 * moment * elements
        else:
            total += o.moments * (4 if o.eight_bit else moment) * elements
    return ceil(total)


def train(r: Recipe, anatomy: Anatomy) -> Training:
    """The fullest of the pipeline's ranks."""
    anatomy.explained("what training keeps of them")
    check(r, anatomy)
    stages = [_rank(r, anatomy, i) for i in range(r.pp)]
    return max(stages, key=lambda t: t.peak.n_bytes)


def _rank(r: Recipe, anatomy: Anatomy, index: int) -> Training:
    here = rank_of(r, anatomy, index)
    weights = stored(here)
    params = sum(int(w.params) for w in weights)
    added = adapters(r, here)
    states = _states(r, here, weights, params, added)
    held = activations(r, anatomy, here, index)
    parts = (*states, *held)
    return Training(parts, _peaks(r, parts, params, added), params + added, added or params)


def _shards(r: Recipe, stage_of_zero: int) -> int:
    """Among how many ranks a state is divided: data-parallel and context-parallel ones together."""
    return r.dp * r.cp if r.zero >= stage_of_zero else 1


def _states(
    r: Recipe, here: Anatomy, weights: Sequence[Weight], params: int, added: int
) -> list[Part]:
    p, o = r.profile, OPTIMIZERS[r.optimizer]
    if added:
        base = params * p.weights if r.base is None else _packed_bytes(here, r.base)
        moments = (
            o.moments * p.adapter * added
            if not o.eight_bit
            else ceil(o.moments * added * (1 + Fraction(4, 256)))
        )
        return [
            Part(
                "weights",
                -(-base // _shards(r, 3)),
                "the frozen base" + (", packed" if r.base else ""),
            ),
            Part(
                "adapters",
                -(-p.adapter * added // _shards(r, 3)),
                f"{added:,} parameters of {p.adapter} bytes",
            ),
            Part("gradients", -(-p.adapter * added // _shards(r, 2)), "of the adapters"),
            Part(
                "optimizer",
                0 if r.offload else -(-moments // _shards(r, 1)),
                f"{r.optimizer}, of the adapters",
            ),
        ]
    said = {n: f", over {_shards(r, n)} ranks" if _shards(r, n) > 1 else "" for n in (1, 2, 3)}
    if r.ep > 1 and any(w.routed for w in weights):
        said = {
            n: text and f"{text}, experts over {_shards(r, n) // r.ep}" for n, text in said.items()
        }

    def each(n_bytes: int, level: int) -> int:
        return _divided(r, weights, level, lambda some: n_bytes * sum(int(w.params) for w in some))

    master = 0 if r.offload else each(p.master, 1)
    moments = (
        0 if r.offload else _divided(r, weights, 1, lambda some: optimizer_bytes(o, some, p.moment))
    )
    return [
        Part("weights", each(p.weights, 3), f"{p.weights} bytes per parameter{said[3]}"),
        Part("gradients", each(p.grads, 2), f"{p.grads} bytes per parameter{said[2]}"),
        Part("master", master, f"{p.master} bytes per parameter{said[1]}"),
        Part("optimizer", moments, f"{r.optimizer}{said[1]}"),
    ]


def _divided(
    r: Recipe, weights: Sequence[Weight], level: int, n_bytes: Callable[[Sequence[Weight]], int]
) -> int:
    """A state's bytes on one rank: experts are divided among the ranks that hold the same ones,
    dp·cp/ep of them.
    """
    ranks = _shards(r, level)
    if r.ep == 1 or ranks == 1:
        return -(-n_bytes(weights) // ranks)
    routed, others = [w for w in weights if w.routed], [w for w in weights if not w.routed]
    return -(-n_bytes(others) // ranks) + -(-n_bytes(routed) // (ranks // r.ep))


def _packed_bytes(here: Anatomy, base: Format) -> int:
    """A frozen base as its format stores it, buffers too: the text model on this rank."""
    return sum(int(piece.n_bytes) for piece in stored_as(here, base) if piece.weight.text)


def _peaks(r: Recipe, parts: Sequence[Part], params: int, added: int) -> tuple[Peak, ...]:
    """Loss backward, end of forward, optimizer step: what each moment holds."""
    by = {p.name: p.n_bytes for p in parts}
    ours = r.profile.activations == "hf"
    states = {name: by.get(name, 0) for name in ("weights", "adapters", "master", "optimizer")}
    kept = by["gradients"] if r.keep_grads or not ours else 0
    alive = {
        **states,
        "gradients": kept,
        "activations": by["activations"],
        "gathered": by.get("gathered", 0),
    }
    casts, recomputed = by.get("casts", 0), by.get("recomputed", 0)
    unit = r.profile.adapter if added else r.profile.weights
    copy = unit * (added or params) // _shards(r, 1) if r.profile.extra else 0
    moments = {
        "backward of the loss": {
            **alive,
            "logits": by["logits"],
            "casts": casts,
            "recomputed": 0 if ours else recomputed,
        },
        "end of forward": {
            **alive,
            "logits": by["logits"] * 10 // 14,
            "casts": by.get("forward casts", casts),
        },
        "backward of a layer": {
            **alive,
            "gradients": by["gradients"],
            "recomputed": recomputed,
            "casts": casts,
        },
        "optimizer step": {**states, "gradients": by["gradients"], "copy of what is updated": copy},
    }
    return tuple(
        Peak(name, tuple((k, n) for k, n in held.items() if n)) for name, held in moments.items()
    )


def zero_bytes(params: Fraction, dp: int, level: int, optimizer: int = 12) -> Fraction:
    """ZeRO's own formula (Table 1):

    16-bit weights and gradients, ``optimizer`` bytes of the rest per parameter.
    """
    parts = (2 if level < 3 else Fraction(2, dp), 2 if level < 2 else Fraction(2, dp))
    return params * (
        sum(parts, Fraction(0)) + (optimizer if level < 1 else Fraction(optimizer, dp))
    )
