"""The executor: runs a list of parts, the same that is counted, on real weights.

It knows no family's name.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.errors import InputError, UnavailableError
from llmcalc.forward import Forward
from llmcalc.live.attention import attend
from llmcalc.live.cache import Cache, Kept, States
from llmcalc.live.forward_pass import Pass, Watch
from llmcalc.live.ops import experts, mlp, norm
from llmcalc.live.scan import scan
from llmcalc.live.weights import Slots, Weights
from llmcalc.questions.layer_plan import LayerPlan, layer_plan, outside

_ATTENTION = {f"attn.{n}" for n in ("q", "k", "v", "qkv", "o", "q_norm", "k_norm")}
_LATENT = {f"attn.{n}" for n in ("q_a", "q_b", "q_a_norm", "kv_a", "kv_a_norm", "kv_b")}
_MATRICES = ("mlp.gate", "mlp.up", "mlp.gate_up", "mlp.down")
_MLP = {f"{matrix}{place}" for matrix in _MATRICES for place in ("", ".routed", ".shared")}
_SCAN = {f"ssm.{n}" for n in ("in", "conv", "x", "dt", "a", "d", "out")}
_NORMS = {f"norm.{i}" for i in range(4)}
_RULES = _ATTENTION | _LATENT | _MLP | _SCAN | _NORMS
_BIASES = {f"{slot}.bias" for slot in _RULES}
_BESIDE = {"attn.sinks", "router", "router.bias", "router.correction", "router.shared"}
KNOWN = _RULES | _BIASES | _BESIDE
"""Every slot of a layer that the executor has a rule for."""
_BEFORE = {"embed.token", "embed.position", "norm.0", "norm.0.bias"}
_BEHIND = {"norm.0", "norm.0.bias", "head", "head.bias"}
_NORMS_PER_JOIN = {"pre": (1, 2), "post": (2,), "sandwich": (4,), "parallel": (1, 2)}


class Runner:
    """A model ready to run: ``runner(ids, cache)`` gives logits."""

    def __init__(
        self, anatomy: Anatomy, style: Forward, weights: Weights, stream: bool = False
    ) -> None:
        self.anatomy = anatomy
        self.style = style
        self.weights = weights
        self.stream = stream
        self.ranks = weights.ranks
        self.plans = [layer_plan(anatomy, i) for i in range(anatomy.n_layers)]
        before, behind = outside(anatomy)
        self._check(set(before), set(behind))
        self.before = weights.of(before)
        self.behind = weights.of(behind)
        self._held = [] if stream else [weights.layer(p) for p in self.plans]

    def _check(self, before: set[str], behind: set[str]) -> None:
        """Refuses what there is no rule for, by name, before anything is loaded."""
        odd = [slot for slot in before if slot not in _BEFORE]
        odd += [slot for slot in behind if slot not in _BEHIND]
        for plan in self.plans:
            odd += [slot for slot in plan.weights if slot not in KNOWN]
            attends = len(plan.mixers) == 1 and plan.mixers[0].kind in ("kv", "latent", "state")
            if not attends or plan.mixers[0].chunked:
                odd.append(f"the mixer of layer {plan.index}")
                continue
            norms = _NORMS_PER_JOIN[self.style.join]
            if plan.mixers[0].kind != "state" and plan.n_norms not in norms:
                odd.append(f"{plan.n_norms} norms in layer {plan.index}")
        if odd or "head" not in behind or "embed.token" not in before:
            what = odd[0] if odd else "a model without embedding or head"
            raise UnavailableError(
                f"running this {self.anatomy.family} is not supported: no rule for {what}"
            )

    def cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for so many sequences of so many tokens."""
        mixers: list[Mixer] = [p.mixers[0] for p in self.plans]
        return Cache(mixers, batch, capacity, self.weights.dtype, self.weights.device)

    def layer(self, index: int) -> Slots:
        """The weights of one layer; streamed ones are loaded now."""
        return self.weights.layer(self.plans[index]) if self.stream else self._held[index]

    @torch.inference_mode()
    def __call__(
        self,
        ids: Tensor,
        cache: Cache,
        valid: Tensor | None = None,
        watch: Watch | None = None,
        weights_of: frozenset[int] = frozenset(),
        every: bool = False,
    ) -> Tensor:
        """``forward`` without anything kept for a backward pass."""
        return self.forward(ids, cache, valid, watch, weights_of, every)

    def forward(
        self,
        ids: Tensor,
        cache: Cache,
        valid: Tensor | None = None,
        watch: Watch | None = None,
        weights_of: frozenset[int] = frozenset(),
        every: bool = False,
    ) -> Tensor:
        """Logits (B, V) of the last token, or (B, T, V) of ``every`` one, for ids (B, T).

        The cache grows by T. ``valid`` (B, T) is False on padding, which stands left of the text.
        ``weights_of`` names layers whose attention weights are shown to ``watch``.
        """
        run = self._begin(ids, cache, valid, watch, weights_of)
        x = self._embed(ids, run)  # (B, T, d)
        for plan, kept in zip(self.plans, cache.layers, strict=True):
            w = self.layer(plan.index)
            x = self._layer(plan, w, x, kept, run)  # (B, T, d)
            run.see(plan.index, "layer", x)
            if self.stream:
                del w  # before the next layer's are loaded
                self.weights.files.release()
        cache.length += ids.shape[1]
        if not every:
            x = x[:, -1:]  # (B, 1, d)
        x = self.last_norm(x)
        run.see(None, "norm.last", x)
        logits = self.head(x)  # (B, T or 1, V)
        run.see(None, "head", logits)
        return logits if every else logits[:, -1]

    def head(self, x: Tensor) -> Tensor:
        """Logits (B, T, V) of normed states, scaled and capped as the family does."""
        tied = "head" not in self.behind
        weight: Tensor = self.before["embed.token"] if tied else self.behind["head"]  # (V, d)
        logits = F.linear(x, weight, self.behind.get("head.bias"))  # this rank's share of V
        logits = self.ranks.joined(logits) * self.style.logit_scale
        cap = self.style.logit_cap
        return torch.tanh(logits / cap) * cap if cap else logits

    def last_norm(self, x: Tensor) -> Tensor:
        """The norm before the head, for looking through it at earlier layers."""
        return norm(self.style, self.behind, "norm.0", x)

    def _begin(
        self,
        ids: Tensor,
        cache: Cache,
        valid: Tensor | None,
        watch: Watch | None,
        weights_of: frozenset[int],
    ) -> Pass:
        """The pass of ids (B, T) behind the P tokens that the cache has seen."""
        batch, new = ids.shape
        first = cache.length
        if first + new > cache.capacity:
            raise InputError(f"{first + new} tokens do not fit a cache of {cache.capacity}")
        if valid is not None or cache.valid is not None:
            old = cache.valid  # (B, P)
            if old is None:
                old = torch.ones(batch, first, dtype=torch.bool)
            if valid is None:
                valid = torch.ones(batch, new, dtype=torch.bool)
            cache.valid = torch.cat((old.to(ids.device), valid.to(ids.device)), 1)  # (B, P + T)
        if cache.valid is None:
            positions = torch.arange(first, first + new, device=ids.device)[None]  # (1, T)
        else:
            # padding is not counted, so that a text's first token stands at 0
            counted = cache.valid.long().cumsum(1) - 1  # (B, P + T)
            positions = counted.clamp(min=0)[:, first:]  # (B, T)
        return Pass(positions, first, cache.valid, watch, weights_of)

    def _embed(self, ids: Tensor, run: Pass) -> Tensor:
        """The residual stream (B, T, d) as it begins."""
        style = self.style
        x = self.ranks.embed(ids, self.before["embed.token"])  # (B, T, d)
        if style.embed_scale != 1.0:
            # the scale is rounded to the format of the run: transformers 5.24, modeling_gemma.py
            x = x * torch.tensor(style.embed_scale, dtype=x.dtype, device=x.device)
        run.see(None, "embed.token", x)
        if "embed.position" in self.before:
            table = self.before["embed.position"]  # (rows, d)
            at = run.positions + style.position_offset  # (B or 1, T)
            last = int(at.max())
            if last >= len(table):
                raise InputError(f"position {last} is beyond the {len(table)} learned ones")
            x = x + F.embedding(at, table)
            run.see(None, "embed.position", x)
        if "norm.0" in self.before:
            x = norm(style, self.before, "norm.0", x)
            run.see(None, "norm.0", x)
        return x

    def _layer(
        self, plan: LayerPlan, w: Slots, x: Tensor, kept: Kept | States, run: Pass
    ) -> Tensor:
        """One layer of x (B, T, d): what it mixes and what it feeds forward.

        The style says how both are joined to the residual stream.
        """
        style, layer = self.style, plan.index
        scale = style.residual_scale

        def mixed(y: Tensor) -> Tensor:
            return self._mix(plan, w, y, kept, run)

        def fed(y: Tensor) -> Tensor:
            return self._feed(plan, w, y, run)

        def normed(n: int, y: Tensor) -> Tensor:
            y = norm(style, w, f"norm.{n}", y)
            run.see(layer, f"norm.{n}", y)
            return y

        def joined(slot: str, x: Tensor, y: Tensor) -> Tensor:
            x = x + (y if scale == 1.0 else y * scale)
            run.see(layer, slot, x)
            return x

        if isinstance(kept, States):
            return joined("add.mix", x, mixed(normed(0, x)))
        if style.join == "parallel":
            h = normed(0, x)
            seen = mixed(h)
            return joined("add.mlp", x, seen + fed(normed(1, x) if plan.n_norms > 1 else h))
        if style.join == "post":
            x = joined("add.mix", x, normed(0, mixed(x)))
            return joined("add.mlp", x, normed(1, fed(x)))
        if style.join == "sandwich":
            x = joined("add.mix", x, normed(1, mixed(normed(0, x))))
            return joined("add.mlp", x, normed(3, fed(normed(2, x))))
        x = joined("add.mix", x, mixed(normed(0, x)))
        return joined("add.mlp", x, fed(normed(1, x)))

    def _mix(self, plan: LayerPlan, w: Slots, x: Tensor, kept: Kept | States, run: Pass) -> Tensor:
        """What a layer's tokens take from one another, (B, T, d)."""
        if isinstance(kept, States):
            y = scan(self.style, plan, w, x, kept, run)
            run.see(plan.index, "ssm.out", y)
        else:
            y = self.ranks.total(attend(self.style, plan, w, x, kept, run))
            run.see(plan.index, "attn.o", y)
        return y

    def _feed(self, plan: LayerPlan, w: Slots, x: Tensor, run: Pass) -> Tensor:
        """A layer's feed-forward, routed or not, (B, T, d)."""
        see, whole = run.at(plan.index), self.ranks.total
        if not plan.has_experts:
            return mlp(self.style, w, x, "", see, whole)
        downs = (wt for slot, wt in plan.weights.items() if slot.startswith("mlp.down.routed"))
        k = int(next(downs).active)
        return experts(self.style, w, x, k, see, whole)
