"""Several processes on one model: tensor parallelism by ``torch.distributed``, started with
torchrun.

Each process loads its share of every matrix, as ``calc.parallel`` counts it (Megatron-LM, arXiv
1909.08053): a matrix out of a block by rows, one back into the residual stream by columns, whose
products are summed over all processes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.errors import InputError, UnavailableError
from llmcalc.forward import Forward
from llmcalc.parallel import SPLIT


@dataclass(frozen=True)
class Ranks:
    """This process among ``size``, and what it must know of the model to take its share."""

    rank: int = 0
    size: int = 1
    vocab: int = 0
    sides: tuple[int, ...] = ()
    n_kv_heads: int = 0
    halves: bool = True

    def total(self, x: Tensor) -> Tensor:
        """The sum of every process's share."""
        if self.size > 1:
            x = x.contiguous()
            dist.all_reduce(x)
        return x

    def joined(self, logits: Tensor) -> Tensor:
        """Logits of the whole vocabulary from every process's rows."""
        if self.size == 1:
            return logits
        shares = [torch.empty_like(logits) for _ in range(self.size)]
        dist.all_gather(shares, logits.contiguous())
        return torch.cat(shares, -1)[..., : self.vocab]

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        """Rows of the embedding; each process has some of them, and zeros for the others."""
        if self.size == 1:
            return F.embedding(ids, table)
        local = ids - self.rank * len(table)
        mine = (local >= 0) & (local < len(table))
        return self.total(F.embedding(local.clamp(0, len(table) - 1), table) * mine.unsqueeze(-1))

    def gathered(self, value: Any) -> list[Any]:
        """A value of every process, in order."""
        if self.size == 1:
            return [value]
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value)
        return found

    def cut(self, weight: Weight, tensor: Tensor) -> Tensor:
        """This process's share of a tensor, (out, in) for a matrix."""
        side = SPLIT.get(weight.role)
        if self.size == 1 or side is None:
            return tensor
        if side == "vocab":
            return self._rows_of_vocabulary(tensor)
        if side == "in":
            if tensor.ndim == 1:  # a bias is added once
                return tensor if self.rank == 0 else torch.zeros_like(tensor)
            return self._part(tensor, -1)
        if side == "kv" and self.n_kv_heads < self.size:
            return tensor.chunk(self.n_kv_heads)[self.rank * self.n_kv_heads // self.size]
        if weight.role == "attn.qkv" and self.sides:
            return torch.cat([self._part(t, 0) for t in torch.split(tensor, list(self.sides))])
        if weight.role == "mlp.gate_up" and self.halves:
            return torch.cat([self._part(t, 0) for t in tensor.chunk(2)])
        return self._part(tensor, 0)

    def _part(self, tensor: Tensor, axis: int) -> Tensor:
        if tensor.shape[axis] % self.size:
            raise InputError(f"--tp {self.size} does not divide a matrix of {list(tensor.shape)}")
        return tensor.chunk(self.size, axis)[self.rank]

    def _rows_of_vocabulary(self, tensor: Tensor) -> Tensor:
        """Rows padded so that every process has the same number of them, a multiple of
        64 in all.
        """
        per = -(-(-(-len(tensor) // 64) * 64) // self.size)
        mine = tensor[self.rank * per : (self.rank + 1) * per]
        missing = per - len(mine)
        return F.pad(mine, (0, 0) * (tensor.ndim - 1) + (0, missing)) if missing else mine


ALONE = Ranks()


def together(anatomy: Anatomy, style: Forward, tp: int, device: torch.device) -> Ranks:
    """This process's place among those that torchrun started.

    Without them an UnavailableError says how to start.
    """
    world = int(os.environ.get("WORLD_SIZE", "0"))
    if world != tp:
        there = f"torchrun started {world}" if world else "none was started"
        raise UnavailableError(
            f"--tp {tp} needs {tp} processes, and {there}",
            hint=f"torchrun --nproc-per-node {tp} -m llmcalc trace MODEL --live --tp {tp}",
        )
    mixers = anatomy.mixers
    first = mixers[0]
    whole_norms = any(
        w.role in ("attn.q_norm", "attn.k_norm") and int(w.shape[0]) != int(first.d_qk)
        for w in anatomy.weights
    )
    if (
        whole_norms
        or any(m.kind not in ("kv", "latent") for m in mixers)
        or style.positions == "alibi"
    ):
        raise UnavailableError(f"running {anatomy.family} on several processes is not supported")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    n, n_kv, d = int(first.n_heads), int(first.n_kv_heads), int(first.d_qk)
    sides = (n * d, n_kv * d, n_kv * int(first.d_v)) if style.qkv == "sides" else ()
    if any(w.role == "attn.qkv" for w in anatomy.weights) and n_kv % tp:
        raise InputError(f"--tp {tp} does not divide {n_kv} key/value heads of a joint projection")
    vocab = next(int(w.shape[0]) for w in anatomy.weights if w.role == "embed.token")
    return Ranks(dist.get_rank(), tp, vocab, sides, n_kv, style.clamp is None)


def leave(code: int) -> None:
    """Ends a process of several at once: gloo's threads abort an interpreter that ends beside them.

    Does nothing in a process that works alone.
    """
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
