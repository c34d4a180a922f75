"""vLLM's working memory and what it keeps beside the weights, fitted to start-up logs."""

from __future__ import annotations

from llmcalc.anatomy import Anatomy
from llmcalc.engines.base import GIB, Need, Part, estimated

EVIDENCE = "59 start-up logs of vLLM 0.17 to 0.19"
"""On H100s and A100s."""

_NCCL = {1: 0.25, 2: 2.07}
_NCCL_MORE = 2.15
"""GiB outside of torch's allocator, by ranks that work together."""


def activation_peak(anatomy: Anatomy, *, sequences: int, tokens: int) -> int:
    """The peak while vLLM profiles: sampling all sequences, or the widest MLP over a batch of
    tokens.

    ``max(3.5·max_num_seqs·V·4 B + c, T·2·(3·d_ff + 4·d))``, V padded to 64, c = 0.20 GiB (dense),
    0.55 (experts), 0.35 (pictures: the profile runs their encoder): fitted to 59 start-up logs of
    0.17 to 0.19.
    """
    vocab = -(-anatomy.vocab // 64) * 64
    constant = 0.55 if anatomy.n_experts else 0.35 if anatomy.sees else 0.20
    sampling = 14 * sequences * vocab + int(constant * GIB)
    widest = tokens * 2 * (3 * anatomy.d_ff + 4 * anatomy.d_model)
    return max(sampling, widest)


def activations(need: Need) -> Part:
    """The activations of one profiled batch."""
    middle = activation_peak(
        need.anatomy, sequences=need.sequences, tokens=need.load.batched_tokens
    )
    plain = not (need.anatomy.n_experts or need.anatomy.sees)
    below, above = (0.11, 0.30) if plain else (0.36, 0.25)
    span = (middle, max(0, middle - int(below * GIB)), middle + int(above * GIB))
    return estimated("activations", span, f"peak of one batch; {EVIDENCE}")


def outside_torch(need: Need) -> Part:
    """The CUDA context, and NCCL's buffers where ranks work together."""
    middle = _NCCL.get(need.ranks, _NCCL_MORE)
    slack = 0.21 if need.ranks == 1 else 0.35
    ends = (middle, max(0.0, middle - slack), middle + slack)
    low_to_high = (int(ends[0] * GIB), int(ends[1] * GIB), int(ends[2] * GIB))
    return estimated("context, NCCL", low_to_high, f"outside torch's allocator; {EVIDENCE}")


def working(need: Need) -> list[Part]:
    """Activations and what lies outside of torch."""
    return [activations(need), outside_torch(need)]


def working_with_graphs(need: Need) -> list[Part]:
    """The same, and the CUDA graphs, which newer versions take out of the pool."""
    span = (int(1.02 * GIB), int(0.51 * GIB), int(1.85 * GIB))
    why = f"{EVIDENCE}; taken out of the pool since 0.20"
    return [*working(need), estimated("CUDA graphs", span, why)]


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
