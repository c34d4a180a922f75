"""What to hold and where: the options of a load, and the record they become."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated

import typer

from llmcalc.cli.options.model import count_in
from llmcalc.engines import ENGINES
from llmcalc.engines.cache import Load
from llmcalc.questions.load import Settings, load_for
from llmcalc.sources import Model


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
        int | None,
        typer.Option(
            "--batched-tokens",
            help="vLLM's max_num_batched_tokens, which windows must survive; default: 8192, in fit"
            " by the device.",
        ),
    ] = None
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--in-flight", help="vLLM's batches in flight; default: as the version has it."
        ),
    ] = None
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
        bool,
        typer.Option("--unified", help="llama.cpp: all sequences share --ctx cells, as with -kvu."),
    ] = False
    swa_full: Annotated[
        bool, typer.Option("--swa-full", help="llama.cpp: windows hold every cell.")
    ] = False
    no_flash_attention: Annotated[
        bool, typer.Option("--no-flash-attention", help="llama.cpp without flash attention.")
    ] = False
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="vLLM without CUDA graphs.")
    ] = False
    no_hybrid: Annotated[
        bool,
        typer.Option(
            "--no-hybrid",
            help="vLLM's --disable-hybrid-kv-cache-manager: windows hold every token.",
        ),
    ] = False
    static: Annotated[
        bool, typer.Option("--static", help="transformers: StaticCache of --ctx tokens.")
    ] = False

    @property
    def settings(self) -> Settings:
        """The same as the calculation takes them."""
        return Settings(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Settings)})


def build_load(found: Model, options: LoadOptions, engines: EngineOptions) -> Load:
    """The load that was asked for."""
    counts = {
        name: count_in(f"--{name}", text)
        for name in ("ctx", "prompt", "new", "batch")
        if (text := getattr(options, name)) is not None
    }
    return load_for(
        found,
        engine=options.engine,
        kv_dtype=options.kv_dtype,
        tp=options.tp,
        settings=engines.settings,
        **counts,
    )
