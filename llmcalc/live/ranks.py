"""Several processes on one model: tensor parallelism by ``torch.distributed`` and torchrun.

Each process loads its share of every matrix, as ``llmcalc.parallel`` counts it (Megatron-LM, arXiv
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
        """Logits of the whole vocabulary (..., V) from every process's rows."""
        if self.size == 1:
            return logits
        shares = [torch.empty_like(logits) for _ in range(self.size)]
        dist.all_gather(shares, logits.contiguous())
        padded = torch.cat(shares, -1)
        return padded[..., : self.vocab]

    def embed(self, ids: Tensor, table: Tensor) -> Tensor:
        """Rows (B, T, d) of the embedding; a process has zeros for those of the others."""
        if self.size == 1:
            return F.embedding(ids, table)
        rows = len(table)
        local = ids - self.rank * rows  # (B, T)
        mine = (local >= 0) & (local < rows)
        found = F.embedding(local.clamp(0, rows - 1), table)  # (B, T, d)
        return self.total(found * mine.unsqueeze(-1))

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
            # several processes share a key/value head
            head = self.rank * self.n_kv_heads // self.size
            return tensor.chunk(self.n_kv_heads)[head]
        if weight.role == "attn.qkv" and self.sides:
            q_k_v = torch.split(tensor, list(self.sides))
            return torch.cat([self._part(rows, 0) for rows in q_k_v])
        if weight.role == "mlp.gate_up" and self.halves:
            gate_up = tensor.chunk(2)
            return torch.cat([self._part(rows, 0) for rows in gate_up])
        return self._part(tensor, 0)

    def _part(self, tensor: Tensor, axis: int) -> Tensor:
        if tensor.shape[axis] % self.size:
            raise InputError(f"--tp {self.size} does not divide a matrix of {list(tensor.shape)}")
        return tensor.chunk(self.size, axis)[self.rank]

    def _rows_of_vocabulary(self, tensor: Tensor) -> Tensor:
        """This process's rows: all have as many, of a vocabulary padded to a multiple of 64."""
        padded = -(-len(tensor) // 64) * 64
        rows = -(-padded // self.size)
        mine = tensor[self.rank * rows : (self.rank + 1) * rows]
        missing = rows - len(mine)
        if not missing:
            return mine
        untouched = (0, 0) * (tensor.ndim - 1)
        return F.pad(mine, (*untouched, 0, missing))


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
    d_h = int(first.d_qk)
    norms = [w for w in anatomy.weights if w.role in ("attn.q_norm", "attn.k_norm")]
    whole_norms = any(int(w.shape[0]) != d_h for w in norms)  # over all heads: no rank has them
    odd_mixers = any(m.kind not in ("kv", "latent") for m in mixers)
    if whole_norms or odd_mixers or style.positions == "alibi":
        raise UnavailableError(f"running {anatomy.family} on several processes is not supported")
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    n_h, n_kv, d_v = int(first.n_heads), int(first.n_kv_heads), int(first.d_v)
    sides = (n_h * d_h, n_kv * d_h, n_kv * d_v) if style.qkv == "sides" else ()
    if any(w.role == "attn.qkv" for w in anatomy.weights) and n_kv % tp:
        raise InputError(f"--tp {tp} does not divide {n_kv} key/value heads of a joint projection")
    vocab = next(int(w.shape[0]) for w in anatomy.weights if w.role == "embed.token")
    return Ranks(
        rank=dist.get_rank(),
        size=tp,
        vocab=vocab,
        sides=sides,
        n_kv_heads=n_kv,
        halves=style.clamp is None,
    )


def leave(code: int) -> None:
    """Ends a process of several at once: gloo's threads abort an interpreter that ends beside them.

    Does nothing in a process that works alone.
    """
    if dist.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
