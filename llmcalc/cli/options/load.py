"""What to hold and where: the options of a load, and the record they become."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import typer

from llmcalc.cli.options.model import count_in
from llmcalc.cli.params.command import config_dtype
from llmcalc.dims import Dim
from llmcalc.engines.cache import Load
from llmcalc.errors import InputError
from llmcalc.formats.element import CACHE_DTYPES, DType, dtype
from llmcalc.questions.kvcache import ENGINES, GGML, base_of
from llmcalc.sources import Model
from llmcalc.units import exact


def _engines(incomplete: str) -> list[str]:
    """For a shell that completes: the engines that begin so."""
    return [name for name in ENGINES if name.startswith(incomplete)]


@dataclass(frozen=True)
class LoadOptions:
    """What to hold, and where."""

    ctx: Annotated[
        str | None,
        typer.Option(
            "--ctx",
            "--context",
            help="Tokens per sequence; default: the model's longest.",
            metavar="N",
        ),
    ] = None
    batch: Annotated[str, typer.Option("--batch", help="Sequences.", metavar="N")] = "1"
    prompt: Annotated[
        str | None,
        typer.Option(
            "--prompt", help="Tokens of the prompt (with --new, instead of --ctx).", metavar="N"
        ),
    ] = None
    new: Annotated[str | None, typer.Option("--new", help="Tokens to generate.", metavar="N")] = (
        None
    )
    kv_dtype: Annotated[
        str | None,
        typer.Option("--kv-dtype", help="Cache dtype, or K,V: q8_0,f16. Default: the model's."),
    ] = None
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            help=f"{', '.join(ENGINES)}; vllm@0.10 for older rules.",
            autocompletion=_engines,
        ),
    ] = "formula"
    tp: Annotated[int, typer.Option("--tp", help="Tensor parallel degree: bytes of one rank.")] = 1


@dataclass(frozen=True)
class EngineOptions:
    """Settings that engines round by."""

    block_size: Annotated[
        int | None,
        typer.Option("--block-size", help="Tokens per page (vLLM, SGLang, TensorRT-LLM)."),
    ] = None
    batched_tokens: Annotated[
        int,
        typer.Option(
            "--batched-tokens", help="vLLM's max_num_batched_tokens, which windows must survive."
        ),
    ] = 8192
    in_flight: Annotated[
        int, typer.Option("--in-flight", help="vLLM's batches in flight: 2 with async scheduling.")
    ] = 2
    no_prefix_caching: Annotated[
        bool,
        typer.Option("--no-prefix-caching", help="vLLM: one state page per sequence, not two."),
    ] = False
    speculative: Annotated[
        int,
        typer.Option(
            "--speculative", help="vLLM's speculative tokens, which states keep room for."
        ),
    ] = 0
    ssm_dtype: Annotated[
        str | None,
        typer.Option("--ssm-dtype", help="vLLM's mamba_ssm_cache_dtype, for recurrent states."),
    ] = None
    ubatch: Annotated[
        int, typer.Option("--ubatch", help="llama.cpp's n_ubatch, added to windows.")
    ] = 512
    unified: Annotated[
        bool, typer.Option("--unified", help="llama.cpp: one stream of cells for all sequences.")
    ] = False
    swa_full: Annotated[
        bool, typer.Option("--swa-full", help="llama.cpp: windows hold every cell.")
    ] = False
    no_flash_attention: Annotated[
        bool, typer.Option("--no-flash-attention", help="llama.cpp without flash attention.")
    ] = False
    static: Annotated[
        bool, typer.Option("--static", help="transformers: StaticCache of --ctx tokens.")
    ] = False

    def check(self, engine: str) -> None:
        """An option that the engine does not have is an error and not ignored."""
        base = base_of(engine)
        for option in dataclasses.fields(self):
            owners = _OWNERS.get(option.name, ())
            if base not in owners and getattr(self, option.name) != option.default:
                flag = f"--{option.name.replace('_', '-')}"
                raise InputError(
                    f"{flag} is a setting of {' and '.join(owners)}, and the engine is {base}"
                )


_VLLM = ("vllm",)
_OWNERS: Mapping[str, tuple[str, ...]] = {
    "block_size": ("vllm", "sglang", "tensorrt-llm"),
    "static": ("transformers",),
    **dict.fromkeys(
        ("batched_tokens", "in_flight", "no_prefix_caching", "speculative", "ssm_dtype"), _VLLM
    ),
    **dict.fromkeys(("ubatch", "unified", "swa_full", "no_flash_attention"), GGML),
}
"""Which engines read a setting."""


def count_of(flag: str, text: str, name: str) -> Dim:
    """A count from 1 to 2^40 that was given with a flag, as a named size."""
    value = count_in(flag, text)
    if value < 1:
        raise InputError(f"{flag} is {text}; it must be at least 1")
    if value >= 2**40:
        raise InputError(f"{flag} is {text}, more than any machine holds")
    return Dim(value, name)


def build_load(found: Model, options: LoadOptions, engines: EngineOptions) -> Load:
    """The load that was asked for, with the model's own dtype and longest context where nothing was said."""
    if options.tp < 1:
        raise InputError(f"--tp is {options.tp}; it must be at least 1")
    for name, least in (
        ("batched_tokens", 1),
        ("in_flight", 1),
        ("ubatch", 1),
        ("block_size", 1),
        ("speculative", 0),
    ):
        value = getattr(engines, name)
        if value is not None and value < least:
            raise InputError(f"--{name.replace('_', '-')} is {value}; it must be at least {least}")
    crosses = any(m.kind == "cross" and m.max_source is None for m in found.anatomy.mixers)
    context, source = _tokens(found, options, crosses)
    own, _ = default_dtype(found, options.engine)
    keys, values = _kv_dtypes(options.kv_dtype, own)
    plain = keys.block == 1 and keys.size > 1
    return Load(
        context,
        count_of("--batch", options.batch, "batch"),
        keys,
        values,
        keys if plain else own,
        _ssm_dtype(found, engines),
        source,
        options.tp,
        engines.static,
        engines.block_size,
        engines.batched_tokens,
        engines.in_flight,
        not engines.no_prefix_caching,
        engines.speculative,
        engines.ubatch,
        engines.unified,
        engines.swa_full,
        not engines.no_flash_attention,
    )


def _ssm_dtype(found: Model, engines: EngineOptions) -> DType | None:
    """The format of recurrent states under vLLM: by option, else by the config's own key."""
    raw = found.raw or {}
    inside = raw.get("text_config")
    named = engines.ssm_dtype or raw.get("mamba_ssm_dtype")
    named = named or (inside.get("mamba_ssm_dtype") if isinstance(inside, Mapping) else None)
    return dtype(named) if isinstance(named, str) else None


def _tokens(found: Model, options: LoadOptions, crosses: bool) -> tuple[Dim, Dim | None]:
    """Tokens of the sequence; for an encoder-decoder --ctx is the source, and half of it the answer."""
    if (options.prompt is None) != (options.new is None):
        raise InputError("--prompt and --new go together")
    if options.prompt is not None and options.new is not None:
        if options.ctx is not None:
            raise InputError("--ctx and --prompt/--new say the same thing twice")
        prompt, new = (
            count_of("--prompt", options.prompt, "prompt"),
            count_of("--new", options.new, "new"),
        )
        return (new, prompt) if crosses else (Dim(prompt + new, "context"), None)
    if options.ctx is None:
        longest = found.longest_context
        if longest is None:
            raise InputError("the model names no longest context", hint="give one with --ctx")
        context = Dim(longest, "context")
    else:
        context = count_of("--ctx", options.ctx, "context")
    return (
        (Dim(max(int(context) // 2, 1), "context"), Dim(context, "source"))
        if crosses
        else (context, None)
    )


def default_dtype(found: Model, engine: str) -> tuple[DType, str | None]:
    """The cache's dtype where none is given: the model's, or the engine's own default, and why."""
    own = config_dtype(found.raw or {})
    own = own if own.block == 1 and own.size > 1 else dtype("bfloat16")
    base = base_of(engine)
    if base in GGML:
        return dtype("float16"), f"{base} caches in f16 unless told otherwise"
    if base not in ("formula", "transformers") and own.size > 2:
        return dtype("float16"), f"{base} loads a {own.name} model in 16 bits, and caches so"
    return own, None


def _kv_dtypes(text: str | None, own: DType) -> tuple[DType, DType]:
    if text is None or text == "auto":
        return own, own
    first, _, second = text.partition(",")
    return _kv_dtype(first.strip()), _kv_dtype((second or first).strip())


def _kv_dtype(name: str) -> DType:
    return CACHE_DTYPES.get(name.lower()) or dtype(name)


def beyond(model: Model, tokens: int) -> list[str]:
    """A word where a sequence is longer than the model was made for."""
    own = model.longest_context
    if own is None or tokens <= own:
        return []
    return [
        f"{exact(tokens)} tokens are beyond the model's own {exact(own)}: computed all the same"
    ]
