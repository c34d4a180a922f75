"""What to hold, put together for a model: tokens, sequences, formats, an engine's settings."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from llmcalc.dims import Dim
from llmcalc.engines import choose, owners_of
from llmcalc.engines.cache import Load
from llmcalc.errors import InputError
from llmcalc.formats.element import CACHE_DTYPES, DType, dtype
from llmcalc.sources.model import Model
from llmcalc.units import exact

MOST = 2**40
"""Tokens or sequences that are more than any machine holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What engines round by, each under the name of its option.

    One that an engine lacks is refused.

    ``block_size`` is tokens per page; ``batched_tokens`` and ``in_flight`` are vLLM's
    ``max_num_batched_tokens`` and batches under way, which windows must survive; ``speculative``
    are its draft tokens, which states keep room for, and ``ssm_dtype`` their format; ``ubatch`` is
    llama.cpp's ``n_ubatch``, added to windows; ``enforce_eager`` captures no graphs and
    ``no_hybrid`` is vLLM without its manager of several groups; ``static`` is transformers'
    ``StaticCache``.
    """

    block_size: int | None = None
    batched_tokens: int | None = None
    in_flight: int | None = None
    no_prefix_caching: bool = False
    speculative: int = 0
    ssm_dtype: str | None = None
    ubatch: int = 512
    unified: bool = False
    swa_full: bool = False
    no_flash_attention: bool = False
    enforce_eager: bool = False
    no_hybrid: bool = False
    static: bool = False

    def check(self, engine: str) -> None:
        """A setting of another engine, or one out of range, is an InputError and not ignored."""
        chosen = choose(engine)
        for option in dataclasses.fields(self):
            value, flag = getattr(self, option.name), f"--{option.name.replace('_', '-')}"
            if value == option.default:
                continue
            if option.name not in chosen.engine.options:
                raise not_a_setting(flag, option.name, chosen.name)
            least = 0 if option.name == "speculative" else 1
            if isinstance(value, int) and value < least:
                raise InputError(f"{flag} is {value}; it must be at least {least}")


def not_a_setting(flag: str, option: str, engine: str) -> InputError:
    """The error of an option that belongs to other engines."""
    owners = " and ".join(owners_of(option))
    return InputError(f"{flag} is a setting of {owners}, and the engine is {engine}")


NO_SETTINGS = Settings()


def load_for(
    model: Model,
    *,
    engine: str = "formula",
    ctx: int | None = None,
    prompt: int | None = None,
    new: int | None = None,
    batch: int = 1,
    kv_dtype: str | None = None,
    tp: int = 1,
    settings: Settings = NO_SETTINGS,
) -> Load:
    """The load of one question; the model's own dtype and longest context where nothing is said.

    ``ctx`` is tokens per sequence, or ``prompt`` and ``new`` together; of an encoder-decoder
    ``ctx`` is the source, and half of it the answer.
    """
    if tp < 1:
        raise InputError(f"--tp is {tp}; it must be at least 1")
    settings.check(engine)
    context, source = _tokens(model, ctx, prompt, new)
    own, _ = default_dtype(model, engine)
    keys, values = kv_dtypes(kv_dtype, own)
    plain = keys.block == 1 and keys.size > 1
    return Load(
        context=context,
        batch=size("--batch", batch, "batch"),
        key_dtype=keys,
        value_dtype=values,
        state_dtype=keys if plain else own,
        ssm_dtype=_ssm_dtype(model, settings),
        source=source,
        tp=tp,
        static=settings.static,
        block_size=settings.block_size,
        batched_tokens=settings.batched_tokens,
        in_flight=settings.in_flight,
        prefix_caching=not settings.no_prefix_caching,
        speculative=settings.speculative,
        ubatch=settings.ubatch,
        unified=settings.unified,
        swa_full=settings.swa_full,
        flash_attention=not settings.no_flash_attention,
        graphs=not settings.enforce_eager,
        hybrid=not settings.no_hybrid,
    )


def size(flag: str, value: int, name: str) -> Dim:
    """A count from 1 to 2^40 as a named size; another one is an InputError that names
    the option.
    """
    if value < 1:
        raise InputError(f"{flag} is {value}; it must be at least 1")
    if value >= MOST:
        raise InputError(f"{flag} is {value}, more than any machine holds")
    return Dim(value, name)


def _tokens(
    model: Model, ctx: int | None, prompt: int | None, new: int | None
) -> tuple[Dim, Dim | None]:
    """Tokens of the sequence, and of the other one that an encoder-decoder looks at."""
    crosses = any(m.kind == "cross" and m.max_source is None for m in model.anatomy.mixers)
    if (prompt is None) != (new is None):
        raise InputError("--prompt and --new go together")
    if prompt is not None and new is not None:
        if ctx is not None:
            raise InputError("--ctx and --prompt/--new say the same thing twice")
        source, answer = size("--prompt", prompt, "prompt"), size("--new", new, "new")
        return (answer, source) if crosses else (Dim(source + answer, "context"), None)
    if ctx is None and model.longest_context is None:
        raise InputError("the model names no longest context", hint="give one with --ctx")
    context = size("--ctx", model.longest_context or 1 if ctx is None else ctx, "context")
    if crosses:
        return Dim(max(int(context) // 2, 1), "context"), Dim(context, "source")
    return context, None


def default_dtype(model: Model, engine: str) -> tuple[DType, str | None]:
    """The cache's dtype where none is given: the model's, or the engine's own default, and why."""
    return choose(engine).engine.cache_dtype(model.wide)


def kv_dtypes(text: str | None, own: DType) -> tuple[DType, DType]:
    """The dtypes of keys and values: one name, or two with a comma between them."""
    if text is None or text == "auto":
        return own, own
    first, _, second = text.partition(",")
    return _kv_dtype(first.strip()), _kv_dtype((second or first).strip())


def _kv_dtype(name: str) -> DType:
    return CACHE_DTYPES.get(name.lower()) or dtype(name)


def _ssm_dtype(model: Model, settings: Settings) -> DType | None:
    """The format of recurrent states under vLLM: by option, else by the config's own key."""
    named = settings.ssm_dtype
    for section in model.sections:
        named = named or section.get("mamba_ssm_dtype")
    return dtype(named) if isinstance(named, str) else None


def beyond(model: Model, tokens: int) -> list[str]:
    """A word where a sequence is longer than the model was made for."""
    own = model.longest_context
    if own is None or tokens <= own:
        return []
    return [
        f"{exact(tokens)} tokens are beyond the model's own {exact(own)}: computed all the same"
    ]
