"""What training takes: weights, gradients, master copies, optimizer states, activations, logits; and its peak.

States are exact by the named profile; activations follow the formula of the source that the profile names. Sources:
ZeRO (arXiv 1910.02054), Megatron-LM's activation recomputation (arXiv 2205.05198), and the tensors that autograd saves
for Hugging Face's Llama, measured byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import ceil
from typing import Literal

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import product
from llmcalc.errors import InputError
from llmcalc.parallel import fewer_experts, n_decoder_layers, one_rank, stage
from llmcalc.questions.adapters import added
from llmcalc.questions.flops import in_text

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes of state per element, as multiples of a moment's bytes, and how it treats what is no matrix.

    ``eight_bit`` keeps each moment in one byte and a float32 per 256, but in 32 bits for tensors under 4,096 elements;
    ``factored`` keeps a row and a column per matrix; ``matrices`` applies to them alone, the rest is AdamW's.
    """

    moments: int
    eight_bit: bool = False
    factored: bool = False
    matrices: bool = False


OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer(0),
    "momentum": Optimizer(1),
    "adam": Optimizer(2),
    "adamw": Optimizer(2),
    "adamw8bit": Optimizer(2, eight_bit=True),
    "adafactor": Optimizer(1, factored=True),
    "adagrad": Optimizer(1),
    "lion": Optimizer(1),
    "lion8bit": Optimizer(1, eight_bit=True),
    "muon": Optimizer(1, matrices=True),
}
_SMALL = 4096


@dataclass(frozen=True, slots=True)
class Profile:
    """A framework's convention: bytes per parameter of each state, and which formula its activations follow.

    ``cast`` is a 16-bit copy of weights that is alive in forward and backward (autocast); ``adapter`` the bytes of an
    adapter's parameter, gradient and moment each; ``extra`` whether the step makes one more copy of what it updates.
    """

    weights: int
    grads: int
    master: int
    moment: int
    activations: Literal["hf", "megatron", "torchtitan"]
    source: str
    cast: int = 0
    adapter: int = 4
    extra: bool = False


PROFILES: Mapping[str, Profile] = {
    "zero": Profile(
        2, 2, 4, 4, "megatron", "ZeRO's K = 12 (arXiv 1910.02054): 16 bytes per parameter"
    ),
    "megatron": Profile(
        2, 4, 4, 4, "megatron", "Megatron-LM: gradients in float32, 18 bytes per parameter"
    ),
    "deepspeed": Profile(
        2,
        6,
        4,
        4,
        "megatron",
        "DeepSpeed's estimators: both gradient copies, 20 bytes per parameter",
    ),
    "accelerate": Profile(
        4,
        4,
        0,
        4,
        "hf",
        "Hugging Face Trainer under autocast: float32 weights, 16 bytes per parameter",
        2,
        4,
        True,
    ),
    "torchtitan": Profile(
        4, 4, 0, 4, "torchtitan", "torchtitan: float32 sharded, gathered in bfloat16"
    ),
    "torchtune": Profile(2, 2, 0, 2, "hf", "torchtune: everything in bfloat16, adapters too", 0, 2),
    "bf16": Profile(
        2, 2, 0, 2, "hf", "everything in bfloat16: moments too, 8 bytes per parameter", 0, 4, True
    ),
    "fp32": Profile(4, 4, 0, 4, "hf", "everything in float32: 16 bytes per parameter", 0, 4, True),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a model is trained. ``packed`` is bytes per element of a frozen, quantised base (QLoRA); ``keep_grads`` says
    whether gradients stay allocated between steps."""

    like: str = "accelerate"
    optimizer: str = "adamw"
    tokens: int = 2048
    micro_batch: int = 1
    recompute: Recompute = "none"
    zero: int = 0
    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    interleave: int = 1
    sequence_parallel: bool = True
    eager: bool = False
    keep_grads: bool = False
    loss_chunks: int = 1
    lora_rank: int = 0
    lora_targets: tuple[str, ...] = ()
    dora: bool = False
    packed: Fraction | None = None
    offload: bool = False

    @property
    def profile(self) -> Profile:
        """The convention it follows."""
        return PROFILES[self.like]

    @property
    def local_tokens(self) -> int:
        """Tokens of one micro-batch that one rank sees."""
        return self.tokens * self.micro_batch // self.cp


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of memory on the fullest rank; ``exact`` tells states from what follows a formula of somebody's code."""

    name: str
    n_bytes: int
    why: str
    exact: bool = True


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
    if n_decoder_layers(anatomy) < r.pp:
        raise InputError(f"--pp {r.pp} stages for {n_decoder_layers(anatomy)} layers")


def rank_of(r: Recipe, anatomy: Anatomy, index: int = 0) -> Anatomy:
    """What one rank holds before data parallelism shards it: its stage, its share of matrices, its experts."""
    found = stage(anatomy, r.pp, index) if r.pp > 1 else anatomy
    found = fewer_experts(found, r.ep) if r.ep > 1 else found
    return one_rank(found, r.tp)


def stored(anatomy: Anatomy) -> list[Weight]:
    """The weights that are parameters here, tied ones once."""
    return [w for w in anatomy.weights if w.counted and in_text(w)]


def adapters(r: Recipe, anatomy: Anatomy) -> int:
    """Parameters of LoRA or DoRA on every matrix inside the layers that is adapted."""

    def rank_of(weight: Weight) -> int:
        fits = (
            weight.op == "matmul" and "{layer}" in weight.name and _targeted(weight, r.lora_targets)
        )
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
            total += 4 * (int(w.shape[0]) + int(w.shape[1])) * copies
        elif o.eight_bit and each >= _SMALL:
            total += o.moments * Fraction(elements) * (1 + Fraction(4, 256))
        elif o.matrices and not (two and "{layer}" in w.name):
            total += 2 * moment * elements
        else:
            total += o.moments * (4 if o.eight_bit else moment) * elements
    return ceil(total)


def train(r: Recipe, anatomy: Anatomy) -> Training:
    """The fullest of the pipeline's ranks."""
    check(r, anatomy)
    stages = [_rank(r, anatomy, i) for i in range(r.pp)]
    return max(stages, key=lambda t: t.peak.n_bytes)


def _rank(r: Recipe, anatomy: Anatomy, index: int) -> Training:
    from llmcalc.questions.activations import activations

    here = rank_of(r, anatomy, index)
    weights = stored(here)
    params = sum(int(w.params) for w in weights)
    added = adapters(r, here)
    states = _states(r, weights, params, added)
    held = activations(r, anatomy, here, index)
    parts = (*states, *held)
    return Training(parts, _peaks(r, parts, params, added), params + added, added or params)


def _shards(r: Recipe, stage_of_zero: int) -> int:
    """Among how many ranks a state is divided: data-parallel and context-parallel ones together."""
    return r.dp * r.cp if r.zero >= stage_of_zero else 1


def _states(r: Recipe, weights: Sequence[Weight], params: int, added: int) -> list[Part]:
    p, o = r.profile, OPTIMIZERS[r.optimizer]
    if added:
        base = params * p.weights if r.packed is None else _packed_bytes(weights, r.packed)
        moments = (
            o.moments * p.adapter * added
            if not o.eight_bit
            else ceil(o.moments * added * (1 + Fraction(4, 256)))
        )
        return [
            Part(
                "weights",
                -(-base // _shards(r, 3)),
                "the frozen base" + (", packed" if r.packed else ""),
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
    """A state's bytes on one rank: experts are divided among the ranks that hold the same ones, dp·cp/ep of them."""
    ranks = _shards(r, level)
    if r.ep == 1 or ranks == 1:
        return -(-n_bytes(weights) // ranks)
    routed, others = [w for w in weights if w.routed], [w for w in weights if not w.routed]
    return -(-n_bytes(others) // ranks) + -(-n_bytes(routed) // (ranks // r.ep))


def _packed_bytes(weights: Sequence[Weight], packed: Fraction) -> int:
    """A quantised base: matrices inside the layers packed, embeddings, head and norms in 16 bits."""
    from llmcalc.formats.stored import quantisable

    return ceil(sum(int(w.params) * (packed if quantisable(w) else Fraction(2)) for w in weights))


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
    """ZeRO's own formula (Table 1): 16-bit weights and gradients, ``optimizer`` bytes of the rest per parameter."""
    parts = (2 if level < 3 else Fraction(2, dp), 2 if level < 2 else Fraction(2, dp))
    return params * (
        sum(parts, Fraction(0)) + (optimizer if level < 1 else Fraction(optimizer, dp))
    )


__all__ = [
    "OPTIMIZERS",
    "PROFILES",
    "RECOMPUTE",
    "Recipe",
    "Training",
    "adapters",
    "check",
    "rank_of",
    "replace",
    "train",
    "zero_bytes",
]
