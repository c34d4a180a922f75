"""How a model is trained: optimizers, the conventions of frameworks, and one recipe of all
settings.

Sources: ZeRO (arXiv 1910.02054), Megatron-LM (arXiv 2205.05198), and the frameworks' own code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from llmcalc.formats.stored import Format

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Optimizer:
    """Bytes of state per element, as multiples of a moment's bytes, and how it treats what is no
    matrix.

    ``eight_bit`` keeps each moment in one byte and a float32 per 256, but in 32 bits for tensors
    under 4,096 elements; ``factored`` keeps a row and a column per matrix; ``matrices`` applies to
    them alone, the rest is AdamW's.
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
SMALL = 4096
"""Elements below which an 8-bit optimizer keeps 32 bits (bitsandbytes)."""


@dataclass(frozen=True, slots=True)
class Profile:
    """A framework's convention: bytes per parameter of each state, and which formula its
    activations follow.

    ``cast`` is a 16-bit copy of weights that is alive in forward and backward (autocast);
    ``adapter`` the bytes of an adapter's parameter, gradient and moment each; ``extra`` whether the
    step makes one more copy of what it updates.
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
        weights=2,
        grads=2,
        master=4,
        moment=4,
        activations="megatron",
        source="ZeRO's K = 12 (arXiv 1910.02054): 16 bytes per parameter",
    ),
    "megatron": Profile(
        weights=2,
        grads=4,
        master=4,
        moment=4,
        activations="megatron",
        source="Megatron-LM: gradients in float32, 18 bytes per parameter",
    ),
    "deepspeed": Profile(
        weights=2,
        grads=6,
        master=4,
        moment=4,
        activations="megatron",
        source="DeepSpeed's estimators: both gradient copies, 20 bytes per parameter",
    ),
    "accelerate": Profile(
        weights=4,
        grads=4,
        master=0,
        moment=4,
        activations="hf",
        source="Hugging Face Trainer under autocast: float32 weights, 16 bytes per parameter",
        cast=2,
        adapter=4,
        extra=True,
    ),
    "torchtitan": Profile(
        weights=4,
        grads=4,
        master=0,
        moment=4,
        activations="torchtitan",
        source="torchtitan: float32 sharded, gathered in bfloat16",
    ),
    "torchtune": Profile(
        weights=2,
        grads=2,
        master=0,
        moment=2,
        activations="hf",
        source="torchtune: everything in bfloat16, adapters too",
        cast=0,
        adapter=2,
    ),
    "bf16": Profile(
        weights=2,
        grads=2,
        master=0,
        moment=2,
        activations="hf",
        source="everything in bfloat16: moments too, 8 bytes per parameter",
        cast=0,
        adapter=4,
        extra=True,
    ),
    "fp32": Profile(
        weights=4,
        grads=4,
        master=0,
        moment=4,
        activations="hf",
        source="everything in float32: 16 bytes per parameter",
        cast=0,
        adapter=4,
        extra=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is trained.

    ``base`` is the format of a frozen base under adapters (QLoRA), None keeps the profile's dtype;
    ``keep_grads`` says whether gradients stay allocated between steps.
    """

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
    base: Format | None = None
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
    """One kind of memory on the fullest rank.

    ``exact`` tells states from what follows a formula of somebody's code.
    """

    name: str
    n_bytes: int
    why: str
    exact: bool = True
