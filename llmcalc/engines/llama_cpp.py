"""llama.cpp's cells: rounded to 256, one stream per sequence or one for all, windows with room for
a batch.

Source: llama-kv-cache*.cpp, llama-memory-recurrent.cpp, llama-context.cpp as vendored in
llama-cpp-python 0.3.36. Ollama starts the same code (``-c num_ctx·num_parallel -np num_parallel``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.dims import Dim, ceil_div, least, round_up, total
from llmcalc.engines.base import Engine, Need, Part, Rules, Sampling, estimated
from llmcalc.engines.cache import Cache, Load, Row, gathered, in_bytes, kind_of
from llmcalc.engines.library import cuda_context
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype

RULES = "llama.cpp of early 2026 (llama-kv-cache.cpp): cells in multiples of 256"
CACHE_TYPES = ("float32", "float16", "bfloat16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


NOT_RUN = (
    "gptj",
    "codegen",
    "gpt_neo",
    "opt",
    "biogpt",
    "ctrl",
    "xglm",
    "openai-gpt",
    "reformer",
    "megatron-bert",
)
"""Families without a graph in llama.cpp."""

NO_WINDOW = (
    *("dots1", "ministral3", "mistral", "mistral3", "mixtral", "phi3", "phimoe", "qwen2"),
    *("qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe", "smollm3", "starcoder2"),
)
"""Families whose window its loaders do not read, or read and switch off (phi3)."""
FULL_HEADS = ("minicpm3", "plm")
"""Latent attention that is kept as whole heads."""
SPARSE = (
    *("deepseek32", "deepseek4", "dots3note", "hy_v4", "glm5-next", "qwen4exp", "minimax-m3"),
)
"""Architectures whose indexers and compressors are known, by ``general.architecture``."""
NO_FLASH = ("grok",)
"""Architectures for which it switches flash attention off."""


def cells(anatomy: Anatomy, load: Load, engine: str = "llama.cpp") -> Cache:
    """The K and V tensors of every layer, and the recurrent memory, for ``batch`` slots of
    ``context`` tokens.

    ``unified``: the slots share one pool of ``context`` cells, as ``-c`` gives it.
    """
    if anatomy.family in NO_FLASH:
        load = replace(load, flash_attention=False)
    _check(anatomy, load)
    held = round_up(load.context, 256)
    # measured with llama-cpp-python 0.3.36: a stream for each sequence, whatever is asked for
    streams = Dim(1) if load.unified and anatomy.family != "deepseek4" else load.batch
    mixers = [_as_loaded(m, anatomy) for m in anatomy.mixers if m.kind not in ("none", "shared")]
    if not load.flash_attention:
        mixers = _widened(mixers)
    rows = [_row(m, load, held, streams) for m in mixers]
    notes: tuple[str, ...] = ()
    if load.tp > 1:
        notes = ("the tensors of all devices together; --tp does not divide them",)
    return gathered(engine, RULES, rows, held * streams, notes)


def _as_loaded(m: Mixer, anatomy: Anatomy) -> Mixer:
    """What its loader makes of a layer: a window that it does not read, heads that it keeps."""
    unread = anatomy.family in NO_WINDOW
    # llama-model.cpp, LLM_ARCH_EXAONE4: only the 32B, by its number of layers, slides
    unread = unread or (anatomy.family == "exaone4" and anatomy.n_layers != 64)
    if unread and m.window is not None:
        m = replace(m, window=None)
    if anatomy.family in FULL_HEADS and m.kind == "latent":
        whole = replace(m, kind="kv", n_kv_heads=m.n_heads)
        return replace(whole, keys=m.n_heads * m.d_qk, values=m.n_heads * m.d_v)
    return m


def _widened(mixers: list[Mixer]) -> list[Mixer]:
    """Without flash attention V lies transposed, in every layer as wide as in the widest.

    Source: ``n_embd_v_gqa_max`` in llama-kv-cache.cpp.
    """
    own = [m.n_kv_heads * m.d_v for m in mixers if m.kind == "kv" and m.values]
    widest = max(own, key=int, default=Dim(0))
    return [
        replace(m, values=m.values - m.n_kv_heads * m.d_v + widest)
        if m.kind == "kv" and m.values and int(m.n_kv_heads * m.d_v) < int(widest)
        else m
        for m in mixers
    ]


def _check(anatomy: Anatomy, load: Load) -> None:
    """What llama.cpp refuses, and what is not known of it."""
    if anatomy.family in NOT_RUN:
        raise InputError(
            f"llama.cpp does not run {anatomy.family}", hint="--engine transformers does"
        )
    for kind, side in ((load.key_dtype, "K"), (load.value_dtype, "V")):
        if kind.name not in CACHE_TYPES:
            raise InputError(
                f"llama.cpp has no cache of type {kind.name}",
                hint=f"it has {', '.join(CACHE_TYPES)}",
            )
        for m in anatomy.mixers:
            if kind.block > 1 and load.flash_attention and m.d_qk and m.d_qk % kind.block:
                raise InputError(
                    f"{side} as {kind.name} needs heads that {kind.block} divides; a head has"
                    f" {int(m.d_qk)}"
                )
    if load.value_dtype.block > 1 and not load.flash_attention:
        raise InputError(
            f"llama.cpp holds V as {load.value_dtype.name} with flash attention only",
            hint="drop --no-flash-attention",
        )
    kinds = {m.kind for m in anatomy.mixers}
    keeps_one_row = "latent" in kinds and anatomy.family not in FULL_HEADS
    if keeps_one_row and load.key_dtype != load.value_dtype:
        raise InputError(
            "latent attention has one cache for K and V, so their types must be the same"
        )
    if "cross" in kinds or anatomy.family == "rwkv":
        raise InputError(f"the rule of llama.cpp's cache for {anatomy.family} is not known")
    sparse = any(m.index_keys or m.compress_rate is not None for m in anatomy.mixers)
    if sparse and anatomy.family not in SPARSE:
        raise InputError(
            f"the rule of llama.cpp's cache for the sparse attention of {anatomy.family} is not"
            " known"
        )


def _row(m: Mixer, load: Load, cells: Dim, streams: Dim) -> Row:
    state = m.layers.count * load.batch * state_bytes(m)
    if not m.per_token:
        return Row(
            kind=kind_of(m), layers=m.layers, tokens=None, kv_bytes=Dim(0), state_bytes=state
        )
    held = cells
    if m.compress_rate is not None:
        held = round_up(ceil_div(cells, int(m.compress_rate)), 256)
    # llama-kv-cache-iswa.cpp: pad256(min(n_ctx, n_swa * (unified ? n_seq_max : 1) + n_ubatch))
    if m.window is not None and not load.swa_full:
        wide = m.window * load.batch if load.unified else m.window
        held = round_up(least(cells, wide + Dim(load.ubatch, "ubatch")), 256)
    each = cell(m, load)
    grows = m.window is None or int(held) == int(cells)
    kv = m.layers.count * each * held * streams
    return Row(
        kind=kind_of(m),
        layers=m.layers,
        tokens=held,
        kv_bytes=kv,
        state_bytes=state,
        per_token=m.layers.count * each if grows else Dim(0),
    )


def cell(m: Mixer, load: Load) -> Dim:
    """One cell of one layer: a row of K and a row of V; latent attention keeps one row for both."""
    if m.kind in ("latent", "compressed"):
        row = in_bytes(m.keys + m.values, load.key_dtype)
        return row + in_bytes(m.index_keys, load.key_dtype) if m.index_keys else row
    if m.index_keys:
        index = in_bytes(m.index_keys, load.key_dtype)
        return cell(replace(m, index_keys=Dim(0)), load) + index
    same = load.key_dtype == load.value_dtype
    if same and load.key_dtype.block == 1:
        return in_bytes(m.keys + m.values, load.key_dtype)
    names = ("element_bytes", "element_bytes") if same else ("key_bytes", "value_bytes")
    return in_bytes(m.keys, load.key_dtype, names[0]) + in_bytes(
        m.values, load.value_dtype, names[1]
    )


def state_bytes(m: Mixer) -> Dim:
    """Recurrent memory is float32 always; the convolution keeps one column less than its width."""
    return total(s.channels * (s.width - 1 if s.kind == "conv" else s.width) * 4 for s in m.states)


def working(need: Need) -> list[Part]:
    """The compute buffer of one batch, and the CUDA context."""
    anatomy = need.anatomy
    buffer = 4 * need.load.ubatch * (anatomy.vocab + anatomy.d_model)
    why = "4·n_ubatch·(V + d), the last layer's; attention without flash needs more"
    return [estimated("compute buffer", (buffer, buffer, 2 * buffer), why), *cuda_context(need)]


OPTIONS = {
    "ubatch": "-ub",
    "unified": "-kvu",
    "swa_full": "--swa-full",
    "no_flash_attention": "-fa off",
    "gpu_layers": "-ngl",
}
GGML: dict[str, Any] = {
    "by_layers": True,
    "runs_encoders": True,
    "reads": ("gguf",),
    "narrow_cache": "q8_0",
}
"""What every engine on llama.cpp's memory has in common: layers are divided, and GGUF is read."""


def half(engine: str) -> Any:
    """The cache in 16 bits, which is llama.cpp's default."""
    return lambda wide: (dtype("float16"), f"{engine} caches in f16 unless told otherwise")


SAMPLING = Sampling(
    order=(
        *("bias", "repetition", "frequency", "dry", "top-n-sigma", "top-k", "typical-p"),
        *("top-p", "min-p", "xtc", "temperature"),
    ),
    settings=frozenset(
        (
            *("logit_bias", "repetition_penalty", "frequency_penalty", "presence_penalty"),
            *("dry_multiplier", "dry_base", "dry_allowed_length", "dry_breakers"),
            *("top_n_sigma", "top_k", "typical_p", "top_p", "min_p"),
            *("xtc_probability", "xtc_threshold", "temperature"),
            *("dynatemp_range", "dynatemp_exponent"),
            *("mirostat", "mirostat_tau", "last_n", "min_keep"),
        )
    ),
    defaults={"top_k": 40, "top_p": 0.95, "min_p": 0.05, "temperature": 0.8},
    exactly=True,
    recent=True,
    note=(
        "llama.cpp: cuts at T = 1, temperature last; exactly k tokens; "
        "penalties over the last tokens"
    ),
)
ENGINE = Engine(
    name="llama.cpp",
    aliases=("llamacpp", "llama-cpp"),
    versions=(
        Rules(
            name=RULES,
            source="llama-kv-cache.cpp of llama-cpp-python 0.3.36",
            cache=cells,
            working=working,
        ),
    ),
    options=OPTIONS,
    cache_dtype=half("llama.cpp"),
    sampling=SAMPLING,
    **GGML,
)
