"""The library: a model by name, and one method for every question that a command answers.

Each method takes what the command's options say, as numbers and keywords, calls the same function
as the command, and returns its typed record: sizes are Dims, which are ints that know their
formulas.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from llmcalc.anatomy import Anatomy
from llmcalc.dims import Dim
from llmcalc.errors import InputError
from llmcalc.questions.params import GROUPS, Group, active, buffers, embeddings, parameters, stored
from llmcalc.sources import Model, resolve

if TYPE_CHECKING:
    from llmcalc.engines.cache import Cache
    from llmcalc.formats.stored import Stored
    from llmcalc.questions.check import Result
    from llmcalc.questions.fit import Plan
    from llmcalc.questions.load import Settings
    from llmcalc.questions.recipe import Recipe
    from llmcalc.questions.speed import Step
    from llmcalc.questions.trace import Step as Operation
    from llmcalc.questions.training import Training


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The bounds of one batch: reading the prompts, and one token of every sequence after them."""

    prefill: Step
    decode: Step

    @property
    def tokens_per_second(self) -> float:
        """New tokens per second at most, of all sequences together."""
        return self.decode.tokens / self.decode.seconds


class Loaded:
    """A model and what can be asked of it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def __repr__(self) -> str:
        """What it is in a line.

        >>> load("gpt2")
        <gpt2 (gpt2): 124,439,808 parameters in 12 layers>
        """
        layers = self.anatomy.n_layers
        return (
            f"<{self.name} ({self.anatomy.family}): {self.params:,} parameters in {layers} layers>"
        )

    @property
    def name(self) -> str:
        """What it was called by, or the preset behind that."""
        return self.model.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What has to be said of the model: defaults that were taken, tensors that are absent."""
        return (*self.model.notes, *self.anatomy.notes)

    @property
    def anatomy(self) -> Anatomy:
        """The list of parts."""
        return self.model.anatomy

    @property
    def params(self) -> Dim:
        """Parameters, tied weights once, buffers left out.

        >>> load("gpt2").params.formula
        'V·d + C·d + L·(12d² + 13d) + 2d'
        """
        return parameters(self.anatomy)

    @property
    def active_params(self) -> Dim:
        """Parameters that one token passes through, the input embedding included."""
        return active(self.anatomy)

    @property
    def embedding_params(self) -> Dim:
        """Parameters of the lookup tables."""
        return embeddings(self.anatomy)

    @property
    def buffer_params(self) -> Dim:
        """Elements of tensors that are stored and are no parameters."""
        return buffers(self.anatomy)

    @property
    def stored_params(self) -> Dim:
        """Elements that the checkpoint holds: every parameter once, and the buffers."""
        return stored(self.anatomy)

    def groups(self, by: str = "part") -> list[Group]:
        """The weights counted by ``part``, ``layer``, ``role`` or ``weight``, in forward order.

        >>> [(g.name, int(g.params)) for g in load("gpt2").groups("role")][:2]
        [('embed.token', 38597376), ('embed.position', 786432)]
        """
        if by not in GROUPS:
            raise InputError(f"by is {by!r}, not one of {', '.join(GROUPS)}")
        return GROUPS[by](self.anatomy)

    def weights(self, form: str | None = None, *, tp: int = 1) -> tuple[Stored, ...]:
        """Every tensor as one of ``tp`` ranks stores it, in a format by name or in the model's own.

        >>> sum(piece.n_bytes for piece in load("gpt-oss-20b").weights())
        13761264768
        """
        from llmcalc.formats.stored import stored as stored_as
        from llmcalc.questions.weights import format_of

        return stored_as(self.anatomy, format_of(self.model, form), tp)

    def weight_bytes(self, form: str | None = None, *, tp: int = 1) -> Dim:
        """Bytes of all weights on the fullest rank, in a format by name or in the model's own.

        >>> load("llama-3-8b").weight_bytes("q4_k_m")
        4912898048
        """
        from llmcalc.formats.stored import stored_bytes
        from llmcalc.questions.weights import format_of

        return stored_bytes(self.anatomy, format_of(self.model, form), tp)

    def kvcache(
        self,
        *,
        ctx: int | None = None,
        batch: int = 1,
        engine: str = "formula",
        kv_dtype: str | None = None,
        tp: int = 1,
        prompt: int | None = None,
        new: int | None = None,
        settings: Settings | None = None,
    ) -> Cache:
        """What an engine keeps between tokens: bytes, row by row, with their formulas.

        >>> cache = load("llama-3-8b").kvcache(ctx=8192)
        >>> cache.kv_bytes, cache.kv_bytes.formula
        (1073741824, '2·L·n_kv·d_h·T·B·b')
        """
        from llmcalc.questions.kvcache import kvcache
        from llmcalc.questions.load import NO_SETTINGS, load_for

        load = load_for(
            self.model,
            engine=engine,
            ctx=ctx,
            prompt=prompt,
            new=new,
            batch=batch,
            kv_dtype=kv_dtype,
            tp=tp,
            settings=settings or NO_SETTINGS,
        )
        return kvcache(self.anatomy, load=load, engine=engine)

    def max_context(
        self,
        memory: int,
        *,
        batch: int = 1,
        engine: str = "formula",
        kv_dtype: str | None = None,
        tp: int = 1,
    ) -> int | None:
        """The longest context whose cache fits into so many bytes; None where every length does.

        >>> load("llama-3-8b").max_context(8 * 2**30, engine="vllm")
        65536
        """
        from llmcalc.engines import choose
        from llmcalc.questions.kvcache import largest_context
        from llmcalc.questions.load import load_for

        load = load_for(self.model, engine=engine, ctx=1, batch=batch, kv_dtype=kv_dtype, tp=tp)
        return largest_context(self.anatomy, choose(engine).rules.cache, load, memory)

    def fit(
        self,
        *,
        device: str | None = None,
        memory: int | None = None,
        count: int = 1,
        pp: int = 1,
        ctx: int | None = None,
        batch: int = 1,
        engine: str = "formula",
        weights: str | None = None,
        kv_dtype: str | None = None,
        utilization: float | None = None,
        max_seqs: int | None = None,
        settings: Settings | None = None,
    ) -> Plan:
        """Weights, working memory and cache of the fullest device against its memory.

        ``device`` is one by name, or ``memory`` the bytes of one.

        >>> plan = load("llama-3-8b").fit(device="rtx-4090", ctx=8192)
        >>> plan.verdict, int(plan.parts[0].n_bytes), plan.need
        ('yes', 16060522496, 1073741824)
        """
        from llmcalc.devices import find, of_memory
        from llmcalc.questions.fit import ask_for, fit
        from llmcalc.questions.load import NO_SETTINGS, load_for

        if (device is None) == (memory is None):
            raise InputError("give a device by name, or the memory of one in bytes")
        place = find(device) if device is not None else of_memory(memory or 0)
        load = load_for(
            self.model,
            engine=engine,
            ctx=ctx,
            batch=batch,
            kv_dtype=kv_dtype,
            settings=settings or NO_SETTINGS,
        )
        ask = ask_for(
            self.model,
            load=load,
            engine=engine,
            visible=place.visible_bytes,
            count=count,
            pp=pp,
            weights=weights,
            utilization=utilization,
            sequences=max_seqs,
            device=place.name if device is not None else "",
        )
        return fit(ask)

    def speed(
        self,
        *,
        device: str,
        ctx: int | None = None,
        batch: int = 1,
        weights: str | None = None,
        kv_dtype: str | None = None,
        tp: int = 1,
        compute_share: float = 1.0,
        memory_share: float = 1.0,
    ) -> Speed:
        """The roofline's bounds: time to the first token, and tokens per second at most.

        >>> bound = load("gpt-oss-20b").speed(device="h100", ctx=8192)
        >>> bound.decode.weight_bytes, bound.decode.limit
        (3708083328, 'memory')
        """
        from llmcalc.devices import find
        from llmcalc.questions.load import load_for
        from llmcalc.questions.speed import ask_for, decode, peaks_of, prefill

        ask = ask_for(
            self.model,
            load=load_for(self.model, ctx=ctx, batch=batch, kv_dtype=kv_dtype),
            peaks=peaks_of(find(device)),
            weights=weights,
            tp=tp,
            compute_share=compute_share,
            memory_share=memory_share,
        )
        return Speed(prefill=prefill(ask), decode=decode(ask))

    def train(self, recipe: Recipe | None = None, **settings: Any) -> Training:
        """What training takes on the fullest rank, and the moment of the peak.

        ``settings`` are fields of a ``Recipe``, or change those of the one that is given.

        >>> load("llama-3-8b").train(like="bf16", tokens=2048, recompute="full").peak.moment
        'optimizer step'
        """
        from llmcalc.questions.recipe import Recipe
        from llmcalc.questions.training import train

        known = Recipe.__dataclass_fields__
        for name in settings:
            if name not in known:
                raise InputError(f"a recipe has no {name!r}", hint=f"known: {', '.join(known)}")
        return train(replace(recipe or Recipe(), **settings), self.anatomy)

    def trace(self, tokens: int = 1, *, batch: int = 1, past: int = 0) -> Sequence[Operation]:
        """Every operation from token ids to logits: its shape, parameters and FLOP.

        >>> last = load("gpt2").trace(5)[-1]
        >>> last.part, [int(n) for n in last.shape]
        ('next-token logits', [1, 50257])
        """
        from llmcalc.questions.trace import ask, walk

        return tuple(walk(self.anatomy, ask(batch, tokens, past)))

    def flop(self, tokens: int, *, past: int = 0, training: bool = False) -> int:
        """FLOP of a forward pass over so many tokens, or of one new token behind ``past`` others.

        ``training`` adds the backward pass. One multiply-add is 2 FLOP; attention is causal.

        >>> model = load("llama-3-8b")
        >>> model.flop(8192), model.flop(1, past=8191), model.flop(8192, training=True)
        (140550657277952, 19304284160, 421651971833856)
        """
        from llmcalc.questions.flops import decode_flop, forward_flop, training_flop

        if past and (tokens != 1 or training):
            raise InputError("past is for one new token that is generated")
        if past:
            return decode_flop(self.anatomy, past + tokens)
        return (training_flop if training else forward_flop)(self.anatomy, tokens)

    def check(self) -> Result:
        """The checkpoint's tensors beside what its config promises."""
        from llmcalc.questions.weights import compared

        whole = self.model.with_header()
        if whole.header is None:
            raise InputError(f"{self.name} has no checkpoint to check")
        return compared(whole, whole.header)


def load(name: str | Mapping[str, Any] | None = None, **sizes: Any) -> Loaded:
    """The model behind a preset's name, a file, a directory or a hub id, or a config itself.

    A size goes by our name or by the config's own key, as ``--set`` takes it; without a name the
    sizes are those of the flags (``d``, ``layers``, ``heads``, ...). A wrong name or size is an
    InputError.

    >>> load("deepseek-v3").params
    671026404352
    >>> load("gpt2", n_layers=24).params, load(d=768, layers=12).params
    (209494272, 85054464)
    >>> sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": 10, "n_positions": 6}
    >>> load({"model_type": "gpt2", **sizes}).params
    1888
    """
    if name is None:
        return Loaded(resolve(None, sizes))
    changes = [f"{key}={json.dumps(value)}" for key, value in sizes.items()]
    if isinstance(name, str):
        return Loaded(resolve(name, overrides=changes))
    from llmcalc.sources.config_json import override

    return Loaded(Model("config", "a config", override(name, changes)))
