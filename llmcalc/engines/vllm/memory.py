"""vLLM's working memory and what it keeps beside the weights, version by version.

The sampler's share follows from its code; what stands beside it is fitted to start-up logs, by
kinds of device, and carries the range that they show.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy
from llmcalc.engines.base import GIB, Need, Part, estimated, is_gb10
from llmcalc.engines.vllm.pool import USUAL

Span = tuple[float, float, float]
"""Middle, least and most, in GiB."""

LARGE = 70 * GIB
"""Bytes from which a device has the larger defaults (engine/arg_utils.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """What a version keeps while it measures itself.

    ``copies`` are float32 copies of sequences x V that its sampler holds, at least, as a rule and
    at most: 9.5 where it sorts, 3.5 where a kernel selects (v1/sample/ops/topk_topp_triton.py,
    since 0.17; FlashInfer's to 0.11). ``links`` is memory of ranks that work together on Hopper and
    later, by ranks; ``graphs`` that of CUDA graphs where they are taken out of the pool.
    """

    copies: Span
    links: dict[int, Span]
    graphs: Span | None = None
    evidence: str = ""


_OLD_LINKS: dict[int, Span] = {2: (0.4, 0.1, 1.0), 4: (0.8, 0.2, 1.6), 8: (2.2, 1.2, 2.8)}
_NEW_LINKS: dict[int, Span] = {2: (2.07, 0.2, 2.4), 4: (2.15, 0.4, 2.5), 8: (2.3, 0.5, 2.8)}
_PLAIN_LINKS: dict[int, Span] = {2: (0.2, 0.05, 0.7), 4: (0.3, 0.1, 1.0), 8: (0.6, 0.2, 1.6)}
"""On cards before Hopper, and on those without NVLink."""

SORTING = Profile(
    copies=(9.5, 9.3, 9.8),
    links=_OLD_LINKS,
    evidence="14 start-up logs of vLLM 0.10 to 0.16 on 8 kinds of card",
)
EARLY = Profile(copies=(9.5, 3.5, 9.8), links=_OLD_LINKS, evidence=SORTING.evidence)
SELECTING = Profile(
    copies=(3.5, 3.4, 3.7),
    links=_NEW_LINKS,
    evidence="62 start-up logs of vLLM 0.17 to 0.19 on H100 and A100",
)
GRAPHS = Profile(
    copies=SELECTING.copies,
    links=_NEW_LINKS,
    graphs=(0.55, 0.0, 1.85),
    evidence="93 start-up logs of vLLM 0.17 to 0.28 on 9 kinds of card",
)


def default_sequences(device: str, visible: int) -> int:
    """vLLM's ``max_num_seqs`` where none is named, by the device (engine/arg_utils.py)."""
    return 1024 if _is_large(device, visible) else 256


def default_batch(device: str, visible: int, version: tuple[int, ...] | None) -> int:
    """Its ``max_num_batched_tokens`` as a server."""
    if _is_large(device, visible):
        return 16384 if visible >= 160 * GIB and (version is None or version >= (0, 28)) else USUAL
    return 2048


def _is_large(device: str, visible: int) -> bool:
    small = "a100" in device or is_gb10(device)
    return visible >= LARGE and not small


def is_rocm(device: str) -> bool:
    """Whether the device is one of AMD's."""
    return re.search(r"\bmi\d{3}", device) is not None


def _is_linked(device: str) -> bool:
    """Whether ranks are linked as on Hopper and later datacentre cards."""
    return re.search(r"\b(h100|h200|h20|h800|gh200|b200|b300|gb200|gb300)", device) is not None


def activation_peak(anatomy: Anatomy, *, sequences: int, tokens: int, copies: float) -> int:
    """The peak while vLLM profiles: sampling all sequences, or the widest MLP over a batch of
    tokens.

    ``max(copies·max_num_seqs·V·4 B + c, T·2·(3·d_ff + 4·d))``, V padded to 64, c = 0.20 GiB
    (dense), 0.55 (experts), 0.35 (pictures: the profile runs their encoder).
    """
    vocab = -(-anatomy.vocab // 64) * 64
    constant = 0.55 if anatomy.n_experts else 0.35 if anatomy.sees else 0.20
    sampling = int(copies * 4 * sequences * vocab) + int(constant * GIB)
    widest = tokens * 2 * (3 * anatomy.d_ff + 4 * anatomy.d_model)
    return max(sampling, widest)


def activations(need: Need, profile: Profile) -> Part:
    """The activations of one profiled batch."""
    tokens = need.load.batched_tokens or USUAL
    middle, low, high = (
        activation_peak(need.anatomy, sequences=need.sequences, tokens=tokens, copies=copies)
        for copies in profile.copies
    )
    plain = not (need.anatomy.n_experts or need.anatomy.sees)
    below, above = (0.25, 0.30) if plain else (0.45, 0.45)
    if need.anatomy.sees:
        # an encoder is profiled with its own budget, of up to 16,384 tokens of pictures
        above = 2.6
    span = (middle, max(0, low - int(below * GIB)), high + int(above * GIB))
    return estimated("activations", span, f"peak of one batch; {profile.evidence}")


def outside_torch(need: Need, profile: Profile) -> Part:
    """The CUDA context, and NCCL's buffers where ranks work together.

    On ROCm one log of an MI300X kept 10 GiB more than its kind of model does elsewhere.
    """
    middle, low, high = 0.2, 0.04, 0.5
    if is_rocm(need.device):
        middle, low, high = 4.0, 0.2, 14.0
    elif need.ranks > 1:
        middle, low, high = _linked(need, profile)
    span = (int(middle * GIB), int(low * GIB), int(high * GIB))
    return estimated("context, NCCL", span, f"outside torch's allocator; {profile.evidence}")


def _linked(need: Need, profile: Profile) -> Span:
    """The buffers of ranks on the device's kind; of either where the device is not named, or
    where stages alone are linked, which no log shows.
    """
    ranks = min((n for n in profile.links if n >= need.ranks), default=8)
    fast, plain = profile.links[ranks], _PLAIN_LINKS[ranks]
    if not need.device or need.load.tp == 1:
        return fast[0], min(fast[1], plain[1]), max(fast[2], plain[2])
    return fast if _is_linked(need.device) else plain


def shared_with_the_system(need: Need) -> list[Part]:
    """What the system takes of a memory that both use while vLLM starts, as its logs show it."""
    if not is_gb10(need.device):
        return []
    span = (int(2.2 * GIB), int(0.3 * GIB), int(5.5 * GIB))
    why = "page cache and allocator of a shared memory; 60 start-up logs on GB10"
    return [estimated("system", span, why)]


def graphs(need: Need, profile: Profile) -> list[Part]:
    """The CUDA graphs that newer versions take out of the pool, fewer where few sequences run."""
    if profile.graphs is None or not need.load.graphs:
        return []
    middle, low, high = profile.graphs
    if need.sequences <= 64:
        middle, high = 0.25, 1.0
    if is_gb10(need.device):
        high = 3.5
    span = (int(middle * GIB), int(low * GIB), int(high * GIB))
    why = f"taken out of the pool since 0.20; {profile.evidence}"
    return [estimated("CUDA graphs", span, why)]


def working(need: Need, profile: Profile) -> list[Part]:
    """Everything beside weights and pool."""
    return [
        activations(need, profile),
        outside_torch(need, profile),
        *shared_with_the_system(need),
        *graphs(need, profile),
    ]


def copies(need: Need) -> int:
    """The rotary table, and latent attention's expansion a second time."""
    return rope_bytes(need.here, need.max_context) + absorbed_bytes(need)


def rope_bytes(anatomy: Anatomy, max_context: int) -> int:
    """The table of rotations: one row of 16-bit numbers per position of the longest context."""
    attending = (m for m in anatomy.mixers if m.kind in ("kv", "latent"))
    widths = [int(m.values if m.kind == "latent" else m.d_qk) for m in attending]
    return max_context * max(widths, default=0) * 2


def absorbed_bytes(need: Need) -> int:
    """Latent attention's expansion split for absorption into queries and output, beside
    the whole.
    """
    found = 0
    for mixer in need.here.mixers:
        if mixer.kind == "latent":
            heads = int(mixer.n_heads) // need.load.tp
            widths = int(mixer.d_qk - mixer.values + mixer.d_v)
            found += len(mixer.layers.indices) * heads * widths * int(mixer.keys) * 2
    return found


def padded_experts(anatomy: Anatomy, tp: int) -> tuple[int, int] | None:
    """Bytes that vLLM adds to a rank's MXFP4 experts, least and most by its backends.

    Widths are padded before loading: inner and outer to 128 and 128 (FlashInfer CUTLASS, DeepGEMM)
    or to 128 and 256 (Marlin), at 4.25 bits each (quantization/mxfp4.py of 0.11,
    fused_moe/oracle/mxfp4.py since 0.19). None of a model without routed experts.
    """
    downs = [w for w in anatomy.text if w.routed and w.role == "mlp.down" and w.is_matrix]
    if not downs:
        return None
    found = [0, 0]
    for down in downs:
        inner, outer = -(-int(down.inputs) // tp), int(down.outputs)
        many = int(down.experts) * len(down.layers.indices)
        for i, (to_inner, to_outer) in enumerate(((128, 128), (128, 256))):
            wide = -(-inner // to_inner) * to_inner * (-(-outer // to_outer) * to_outer)
            found[i] += many * 3 * (wide - inner * outer) * 17 // 32
    return min(found), max(found)
