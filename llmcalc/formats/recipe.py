"""What a config's quantisation says of every module: which are packed, and into which tensors.

A writer names modules by class, by their whole name, by a pattern or by a piece of it, and every
one matches in its own way; ``read`` puts that into one question, ``Recipe.of``. Sources: the
writers' own matching code, at the versions that ``layouts`` lists.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from llmcalc.anatomy import Weight
from llmcalc.errors import InputError
from llmcalc.formats import layouts
from llmcalc.formats.layouts import CHANNEL, TENSOR, Layout, of
from llmcalc.text import shorten

_LONGEST = 400
_TEXT = re.compile(r"^(?:model\.|language_model\.|backbone\.|transformer\.|thinker\.)+")
_PLACES = (
    *("", "model.", "language_model.", "model.language_model.", "language_model.model."),
    *("model.language_model.model.", "thinker.model.", "backbone.", "transformer."),
)
"""Under which names the language model stands in the files that configs are written for."""


@dataclass(frozen=True)
class Module:
    """One matrix: the weight, and the name of the module that holds it, without an ending."""

    weight: Weight
    name: str

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names that it may have where a config was written."""
        if self.weight.tower or self.weight.role.startswith("projector"):
            bare = self.name.removeprefix("model.")
            found = [self.name, bare, f"model.{bare}"]
        else:
            bare = _TEXT.sub("", self.name)
            found = [self.name, *(place + bare for place in _PLACES)]
        return tuple(dict.fromkeys(found))

    @property
    def is_head(self) -> bool:
        """Whether it is the language model's head."""
        return self.weight.role == "head"

    @property
    def is_table(self) -> bool:
        """Whether it is an embedding."""
        return self.weight.op == "lookup" and self.weight.role == "embed.token"

    @property
    def is_linear(self) -> bool:
        """Whether the reference implementation has an ``nn.Linear`` for it, or experts of such."""
        w = self.weight
        matrix = w.is_matrix and len(w.shape) == 2 and not w.role.startswith("router")
        return matrix and (w.name.endswith(".weight") or w.stacked or w.rows)

    @property
    def in_blocks(self) -> bool:
        """Whether it is a linear module of the language model's layers."""
        return self.is_linear and self.weight.in_stack and self.weight.text

    def called(self, names: Collection[str]) -> bool:
        """Whether one of the names is its own."""
        return not self._own.isdisjoint(names)

    @cached_property
    def _own(self) -> frozenset[str]:
        return frozenset(self.names)

    def matches(self, pattern: str, whole: bool = False, anywhere: bool = False) -> bool:
        """Whether a regular expression matches one of its names from the beginning."""
        test = _compiled(pattern)
        how = test.search if anywhere else test.fullmatch if whole else test.match
        return any(how(name) for name in self.names)

    def holds(self, text: str) -> bool:
        """Whether its name contains the text."""
        return text in self.name


Choose = Callable[[Module], Layout | None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a config says of its weights' packing.

    ``choose`` gives a module's layout, None where it stays as it is. ``cache_scales`` are bytes
    that lie beside the weights in every layer of attention, for the cache's keys and values.
    """

    name: str
    choose: Choose
    cache_scales: int = 0
    cache_heads: bool = False
    """Whether they are so many bytes for each key/value head."""
    note: str = ""
    by_expert: bool = False
    """Whether the config names single experts."""

    def of(self, weight: Weight, name: str) -> Layout | None:
        """The layout of a weight under its whole name, None where it is stored wide."""
        if len(weight.shape) < 2 or weight.op not in ("matmul", "lookup"):
            return None
        return self.choose(Module(weight, name.removesuffix(".weight")))


def _compiled(pattern: str) -> re.Pattern[str]:
    if len(pattern) > _LONGEST or len(re.findall(r"[*+{]", pattern)) > 12:
        raise InputError(f"the quantisation's pattern {shorten(pattern)} is longer than any")
    try:
        return re.compile(pattern)
    except re.error:
        raise InputError(f"the quantisation's pattern {shorten(pattern)} is no pattern") from None


def read(settings: Mapping[str, Any], wide: str, transformers: str = "") -> Recipe | None:
    """The recipe of a config's ``quantization_config``; None of a method that is not known.

    ``wide`` is the model's own dtype. A value that cannot be is an InputError.
    """
    method = str(settings.get("quant_method", "")).lower().replace("_", "-")
    if not method and "bits" in settings and "group_size" in settings:
        method = "mlx"
    if not method and ("config_groups" in settings or "quant_algo" in settings):
        method = "modelopt" if "quant_algo" in settings else "compressed-tensors"
    reader = _READERS.get(method)
    if reader is None:
        return None
    try:
        found = reader(settings, wide, transformers)
        single = re.search(r"experts\.\d", json.dumps(settings, default=str)) is not None
        return replace(found, by_expert=single)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            f"quantization_config: {method} has a value that cannot be ({shorten(str(error), 60)})"
        ) from None


def _int(value: Any, usual: int, least: int = 1, most: int = 1 << 20) -> int:
    if value is None:
        return usual
    if type(value) is not int or not (least <= value <= most or value == -1):
        raise ValueError(f"{shorten(str(value), 20)} is no number of bits or codes")
    return value


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _names(value: Any) -> list[str]:
    if value is None:
        return []
    found = value if isinstance(value, list | tuple) else [value]
    return [str(name) for name in found]


def _skipped(module: Module, names: Sequence[str]) -> bool:
    """As transformers 5 leaves modules out: the beginning of a name up to a dot, or its end."""
    for key in names:
        pattern = rf"(?:{key})(?:(?<=\.)|(?=\.|$))"
        if module.matches(pattern) or any(name.endswith(key) for name in module.names):
            return True
    return False


def _five(transformers: str) -> bool:
    """Whether it was written by transformers 5, whose experts are no linear modules."""
    return transformers.partition(".")[0].isdecimal() and int(transformers.partition(".")[0]) >= 5


# --- integers -----------------------------------------------------------------------------------


def _gptq(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """GPTQModel and AutoGPTQ; ``dynamic`` overrides by pattern, the first that matches."""
    bits, group = _int(s.get("bits"), 4, 1, 8), _int(s.get("group_size"), 128)
    kind = str(s.get("checkpoint_format") or s.get("format") or "gptq")
    if kind == "marlin":
        return Recipe(name="gptq", choose=_blocks(of(layouts.marlin, group=group)))
    dynamic = _mapping(s.get("dynamic"))
    inside = {n for group in s.get("modules_in_block_to_quantize") or () for n in _names(group)}

    def choose(module: Module) -> Layout | None:
        if not (module.in_blocks or (module.is_head and s.get("lm_head"))):
            return None
        if inside and not module.is_head and not any(module.name.endswith(n) for n in inside):
            return None
        own: Mapping[str, Any] = {}
        for pattern, values in dynamic.items():
            if module.matches(pattern[2:] if pattern[:2] in ("-:", "+:") else pattern):
                if pattern.startswith("-:"):
                    return None
                own = values
                break
        return of(
            layouts.gptq,
            bits=_int(own.get("bits"), bits, 1, 8),
            group=_int(own.get("group_size"), group),
        )

    return Recipe(name="gptq", choose=choose)


def _blocks(layout: Layout, without: Sequence[str] = ()) -> Choose:
    """One layout for the layers' linear modules, but for those whose name holds a text."""

    def choose(module: Module) -> Layout | None:
        left = any(module.holds(text) for text in without)
        return layout if module.in_blocks and not left else None

    return choose


def _awq(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    bits = _int(s.get("bits", s.get("w_bit")), 4, 1, 8)
    group = _int(s.get("group_size", s.get("q_group_size")), 128)
    version = str(s.get("version") or s.get("checkpoint_format") or "gemm").lower()
    # GPTQModel writes both keys, and scales in the model's dtype
    scales = wide if s.get("checkpoint_format") else "float16"
    known = {
        "gemm": of(layouts.awq, bits=bits, group=group, scales=scales),
        "gemv": of(layouts.awq_gemv, group=group),
        "gemv_fast": of(layouts.awq_gemv_fast, group=group),
        "marlin": of(layouts.marlin, group=group),
    }
    if version not in known:
        raise InputError(f"AWQ's layout {shorten(version, 30)} is not known: name the checkpoint")
    without = _names(s.get("modules_to_not_convert"))
    return Recipe(name="awq", choose=_blocks(known[version], without))


def _qqq(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    group = _int(s.get("group_size"), 128)
    return Recipe(name="qqq", choose=_blocks(of(layouts.qqq, group=group)))


def _auto_round(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """auto-round: whole names first, then patterns that may lie anywhere in a name."""
    extra = _mapping(s.get("extra_config"))
    blocks = [
        part.strip() for name in _names(s.get("block_name_to_quantize")) for part in name.split(",")
    ]
    exact = {k: v for k, v in extra.items() if isinstance(v, Mapping)}

    def own_of(module: Module) -> Mapping[str, Any] | None:
        for key, values in exact.items():
            if key in module.names:
                return values
        for key, values in exact.items():
            if module.matches(key, anywhere=True):
                return values
        return None

    def choose(module: Module) -> Layout | None:
        if not (module.is_linear or module.is_table):
            return None
        own = own_of(module) if exact else None
        starts = not blocks or any(n.startswith(b) for b in blocks for n in module.names)
        if own is None and not (module.in_blocks and starts):
            return None
        return _auto_round_layout({**s, **(own or {})}, wide)

    return Recipe(name="auto-round", choose=choose)


def _auto_round_layout(s: Mapping[str, Any], wide: str) -> Layout | None:
    bits = _int(s.get("bits"), 4, 1, 32)
    kind, packing = str(s.get("data_type", "int")), str(s.get("packing_format", ""))
    if bits >= 16 or packing.endswith("fake"):
        return None
    if kind.startswith("nv_fp"):
        return of(layouts.nvfp4, inputs=_int(s.get("act_bits"), 16) < 16)
    if kind.startswith(("mx_fp", "mx_int")) or kind == "mx":
        return of(layouts.mxfp4) if bits == 4 else of(layouts.mxfp8)
    if kind.startswith("fp"):
        return _auto_round_fp8(s, wide)
    group = _int(s.get("group_size"), 128)
    if "awq" in packing or (not packing and s.get("sym") is False):
        return of(layouts.awq, bits=bits, group=group)
    return of(layouts.gptq, bits=bits, group=group, order=False)


def _auto_round_fp8(s: Mapping[str, Any], wide: str) -> Layout:
    group = s.get("group_size")
    if isinstance(group, list):
        return of(layouts.fp8_block, block=_square(group), scale=wide)
    static = _int(s.get("act_bits"), 16) < 16 and not s.get("act_dynamic", True)
    if static:
        more = (("input_scale", wide),)
        return of(layouts.fp8_by_output, wide=wide, more=more)
    scope = CHANNEL if group == -1 else TENSOR
    return of(layouts.scaled, kind="float8_e4m3fn", group=scope, wide=wide)


# --- compressed-tensors -------------------------------------------------------------------------


def _compressed(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """compressed-tensors: exact names before patterns before classes, whatever the order."""
    given = [g for g in (s.get("config_groups") or {}).values() if isinstance(g, Mapping)]
    groups = [(_Targets.of(g.get("targets")), g) for g in given]
    ignored = _Targets.of(s.get("ignore"))
    sparsity = _mapping(s.get("sparsity_config"))
    scheme = s.get("kv_cache_scheme")
    if not given and not sparsity and not scheme:
        raise InputError(
            "compressed-tensors: the config has no config_groups, so what is packed is not known",
            hint="name the checkpoint itself, or give --weights",
        )

    def choose(module: Module) -> Layout | None:
        if not (module.is_linear or module.is_table or module.is_head):
            return None
        # auto-round leaves the head alone and does not list it
        if module.is_head and s.get("provider") == "auto-round":
            return None
        if ignored.rank(module) is not None:
            return None
        found = [(rank, g) for targets, g in groups if (rank := targets.rank(module))]
        if not found:
            return _thinned(module, sparsity, wide)
        _, group = min(found, key=lambda pair: pair[0])
        return _compressed_layout(group, s, sparsity, wide)

    return Recipe(
        name="compressed-tensors",
        choose=choose,
        cache_scales=4 if isinstance(scheme, Mapping) and scheme else 0,
        cache_heads=isinstance(scheme, Mapping) and scheme.get("strategy") == "attn_head",
    )


def _thinned(module: Module, sparsity: Mapping[str, Any], wide: str) -> Layout | None:
    """Two of four weights kept, and nothing quantised."""
    if "sparse-24" not in str(sparsity.get("format", "")):
        return None
    if _Targets.of(sparsity.get("ignore")).rank(module) is not None:
        return None
    if _Targets.of(sparsity.get("targets") or ["Linear"]).rank(module) is None:
        return None
    return lambda i, o: layouts.sparse_24(i, o, kind=wide, scales={})


@dataclass(frozen=True)
class _Targets:
    """Modules by their names, by patterns, by classes."""

    names: frozenset[str]
    patterns: tuple[str, ...]

    @staticmethod
    def of(value: Any) -> _Targets:
        given = _names(value)
        patterns = sorted(t[3:] for t in given if t.startswith("re:"))
        return _Targets(frozenset(t for t in given if not t.startswith("re:")), tuple(patterns))

    def rank(self, module: Module) -> tuple[int, str] | None:
        """How a module is meant: by its name, by a pattern, by its class; None where it is not."""
        if module.called(self.names):
            return 1, module.name
        for pattern in self.patterns:
            if module.matches(pattern):
                return 2, pattern
        if ("Linear" in self.names and module.is_linear) or (
            "Embedding" in self.names and module.is_table
        ):
            return 3, ""
        return None


def _compressed_layout(
    group: Mapping[str, Any], s: Mapping[str, Any], sparsity: Mapping[str, Any], wide: str
) -> Layout:
    weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
    kind = str(group.get("format") or s.get("format") or "")
    bits, strategy = _int(weights.get("num_bits"), 8, 1, 16), weights.get("strategy")
    size = weights.get("group_size")
    if strategy is None:
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    scope = {"tensor": TENSOR, "channel": CHANNEL}.get(str(strategy), _int(size, 128))
    zeros = weights.get("symmetric") is False
    if kind == "marlin-24":
        return of(layouts.marlin_24, group=scope)
    if kind == "pack-quantized":
        order = weights.get("actorder") in ("group", "dynamic")
        packed = {"bits": bits, "group": scope, "zeros": zeros, "order": order, "wide": wide}
        return of(layouts.packed_integers, **packed)
    if kind == "nvfp4-pack-quantized":
        return of(layouts.nvfp4, inputs=bool(inputs))
    if kind == "mxfp4-pack-quantized":
        return of(layouts.mxfp4)
    if kind == "mxfp8-quantized":
        return of(layouts.mxfp8)
    if not kind or kind in ("dense", "mixed-precision"):
        raise InputError(
            "compressed-tensors: a group of the config names no format", hint="name the checkpoint"
        )
    stored = "float8_e4m3fn" if weights.get("type") == "float" else "int8"
    block = _square(weights.get("block_structure")) if strategy == "block" else None
    layout = of(
        layouts.scaled,
        kind=stored,
        group=scope,
        wide=wide,
        block=block,
        more=_more(group, zeros, wide),
    )
    if "sparse-24" in str(sparsity.get("format", "")):
        return lambda i, o: layouts.sparse_24(i, o, kind=stored, scales=layout(i, o))
    return layout


def _more(group: Mapping[str, Any], zeros: bool, wide: str) -> tuple[tuple[str, str], ...]:
    """Scalars of static activations, and zero points of the weights."""
    found = [("weight_zero_point", "int8")] if zeros else []
    for key, ending in (("input_activations", "input"), ("output_activations", "output")):
        settings = group.get(key) or {}
        if settings and not settings.get("dynamic"):
            found.append((f"{ending}_scale", wide))
            if settings.get("symmetric") is False:
                found.append((f"{ending}_zero_point", "int8"))
    return tuple(found)


def _square(block: Any) -> tuple[int, int]:
    sizes = block if isinstance(block, list | tuple) else ()
    if isinstance(block, str):
        sizes = [int(n) for n in re.findall(r"\d+", block)]
    if len(sizes) == 2 and all(type(n) is int and n > 0 for n in sizes):
        return sizes[0], sizes[1]
    raise ValueError(f"{shorten(str(block), 30)} is no block")


# --- ModelOpt -----------------------------------------------------------------------------------


def _modelopt(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """ModelOpt: names with a star at the end stay wide, or every module has its own algorithm."""
    inside = _mapping(s.get("quantization"))
    s = {**inside, **s}
    left = _names(s.get("ignore") or s.get("exclude_modules"))
    whole = frozenset(n for n in left if "*" not in n)
    stars = [n for n in left if "*" in n]
    each = _mapping(s.get("quantized_layers"))
    algorithm = str(s.get("quant_algo") or "")
    mixed = algorithm == "MIXED_PRECISION"
    if not left and not each:
        raise InputError(
            "modelopt: the config does not list what stays wide (ignore, exclude_modules)",
            hint="name the checkpoint itself, or give --weights",
        )
    cache = s.get("kv_cache_scheme") or s.get("kv_cache_quant_algo")

    def choose(module: Module) -> Layout | None:
        if not module.is_linear:
            return None
        if mixed:
            own = _listed(module, each)
            return None if own is None else _modelopt_layout(own, module, wide)
        if module.called(whole) or any(
            fnmatch.fnmatchcase(name, star) for star in stars for name in module.names
        ):
            return None
        return _modelopt_layout(s, module, wide)

    return Recipe(name="modelopt", choose=choose, cache_scales=8 if cache else 0)


def _listed(module: Module, each: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What is said of a module by its name, or of all experts by the name of their list."""
    for name in module.names:
        for known in (name, name.partition(".experts.")[0] + ".experts"):
            if isinstance(each.get(known), Mapping):
                return each[known]  # type: ignore[no-any-return]
    return None


def _modelopt_layout(s: Mapping[str, Any], module: Module, wide: str) -> Layout:
    algorithm = str(s.get("quant_algo") or "")
    # those of q, k, v, gate and up are folded into the norm before them
    smoothed = module.name.endswith(("o_proj", "down_proj"))
    group = _int(s.get("group_size"), 128)
    known: dict[str, Callable[[], Layout]] = {
        "FP8": lambda: layouts.modelopt_fp8,
        "NVFP4": lambda: of(layouts.modelopt_nvfp4),
        "W4A16_NVFP4": lambda: of(layouts.modelopt_nvfp4, inputs=False),
        "W4A8_NVFP4_FP8": lambda: of(layouts.modelopt_nvfp4, group=32),
        "W4A16_AWQ": lambda: of(layouts.modelopt_awq, group=group, wide=wide, smoothed=smoothed),
        "W4A8_AWQ": lambda: of(
            layouts.modelopt_awq, group=group, wide=wide, smoothed=smoothed, w4a8=True
        ),
        "FP8_PER_CHANNEL_PER_TOKEN": lambda: of(layouts.modelopt_rows, kind="float8_e4m3fn"),
        "FP8_PB_WO": lambda: of(layouts.modelopt_fp8_block),
        "FP8_PB_REAL": lambda: of(layouts.modelopt_fp8_block),
        "W8A8_SQ_PER_CHANNEL": lambda: of(
            layouts.modelopt_rows, kind="int8", wide=wide, inputs=True, smoothed=True
        ),
        "W8A16": lambda: of(layouts.modelopt_rows, kind="int8"),
        "MXFP8": lambda: layouts.mxfp8,
        "MXFP4": lambda: layouts.modelopt_mxfp4,
        "W4A8_MXFP4_FP8": lambda: layouts.modelopt_mxfp4,
    }
    if algorithm.upper() not in known:
        raise InputError(
            f"ModelOpt's {shorten(algorithm, 40) or 'algorithm'} is not known without the"
            " checkpoint",
            hint="name the checkpoint itself",
        )
    return known[algorithm.upper()]()


# --- others -------------------------------------------------------------------------------------


def _bitsandbytes(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """bitsandbytes: every linear module but those left out, the head where nothing is said."""
    four = s.get("load_in_4bit") or s.get("_load_in_4bit")
    named = s.get("llm_int8_skip_modules")
    without = ["lm_head"] if named is None else _names(named)
    kind = str(s.get("bnb_4bit_quant_type") or "fp4")
    double = bool(s.get("bnb_4bit_use_double_quant"))
    storage = str(s.get("bnb_4bit_quant_storage") or "uint8")
    layout: Layout = layouts.bits8
    if four:
        layout = of(layouts.bits4, kind=kind, double=double, storage=storage)
    return Recipe(
        name="bitsandbytes",
        choose=_linear(layout, without, experts=not _five(transformers)),
        note="the JSON state of bitsandbytes, about 80 bytes of each matrix, is not counted"
        if four
        else "",
    )


def _linear(layout: Layout, without: Sequence[str], experts: bool = True) -> Choose:
    """One layout for every linear module, but for those left out as transformers does."""

    def choose(module: Module) -> Layout | None:
        if not (module.is_linear or module.is_head):
            return None
        if module.weight.routed and not experts:
            return None
        return None if _skipped(module, without) else layout

    return choose


def _hqq(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """HQQ: the router too; with settings by tag, what is not listed stays wide."""
    config = s.get("quant_config") or {}
    without = _names(s.get("skip_modules")) or ["lm_head"]

    def layout(values: Mapping[str, Any]) -> Layout:
        inner = values.get("weight_quant_params") or values
        group = inner.get("group_size")
        return of(
            layouts.hqq,
            bits=_int(inner.get("nbits"), 4, 1, 8),
            group=None if group is None else _int(group, 64),
            axis=_int(inner.get("axis"), 1, 0, 1),
            wide=wide,
        )

    tags = {k: v for k, v in config.items() if isinstance(v, Mapping) and "." in k}

    def choose(module: Module) -> Layout | None:
        linear = module.is_linear or module.is_head or module.weight.role.startswith("router")
        if not linear or any(module.name.endswith(n) for n in without):
            return None
        if tags:
            own = next((v for tag, v in tags.items() if module.name.endswith(f".{tag}")), None)
            return None if own is None else layout(own)
        return layout(config)

    return Recipe(name="hqq", choose=choose)


def _torchao(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """torchao: patterns are held against the name of the parameter, not of the module."""
    kinds = s.get("quant_type")
    kind = kinds.get("default") if isinstance(kinds, Mapping) else None
    if not isinstance(kind, Mapping):
        raise InputError("torchao's quantisation is not known without the checkpoint")
    data = _mapping(kind.get("_data"))
    named = s.get("modules_to_not_convert")
    without = ["lm_head"] if named is None else _names(named)
    if kind.get("_type") == "FqnToConfig" or "FqnTo" in str(kind.get("_type")):
        return Recipe(name="torchao", choose=_torchao_named(data, wide, without))
    layout = _torchao_layout(kind, wide)
    if s.get("include_input_output_embeddings"):
        without = [n for n in without if n != "lm_head"]

    def choose(module: Module) -> Layout | None:
        linear = module.is_linear and not (module.weight.routed and _five(transformers))
        if not (linear or module.is_head):
            return None
        held = Module(module.weight, f"{module.name}.weight")
        return None if _skipped(held, without) else layout

    return Recipe(name="torchao", choose=choose)


def _torchao_named(data: Mapping[str, Any], wide: str, without: Sequence[str]) -> Choose:
    each = data.get("fqn_to_config") or data.get("module_fqn_to_config") or {}

    def choose(module: Module) -> Layout | None:
        if not (module.is_linear or module.is_head) or _skipped(module, without):
            return None
        names = [k for k in each if k in module.names]
        patterns = [k for k in each if k.startswith("re:") and module.matches(k[3:], whole=True)]
        key = next(iter([*names, *patterns, *(k for k in each if k == "_default")]), None)
        own = each.get(key) if key is not None else None
        return _torchao_layout(own, wide) if isinstance(own, Mapping) else None

    return choose


def _torchao_layout(kind: Mapping[str, Any], wide: str) -> Layout:
    name = str(kind.get("_type", ""))
    data = _mapping(kind.get("_data"))
    if name in ("Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig"):
        return of(layouts.torchao, kind="int8", group=CHANNEL, wide=wide, zeros=True)
    if name == "Float8WeightOnlyConfig":
        return of(layouts.torchao, kind="float8_e4m3fn", group=CHANNEL, wide=wide, zeros=False)
    if name in ("IntxWeightOnlyConfig", "Int8DynamicActivationIntxWeightConfig"):
        scope = data.get("granularity") or data.get("weight_granularity") or {}
        inner = scope.get("_data") or {}
        group = _int(inner.get("group_size"), 32)
        return of(layouts.torchao, kind="int8", group=group, wide=wide, zeros=True)
    raise InputError(
        f"torchao's {shorten(name, 60)} is not known without the checkpoint",
        hint="name the checkpoint itself",
    )


def _quanto(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """quanto: its own map of modules (quanto_qmap.json)."""
    kinds = {"qint8": "int8", "qint4": "int4", "qint2": "int2", "qfloat8": "float8_e4m3fn"}
    kinds |= {"qfloat8_e4m3fn": "float8_e4m3fn"}
    each = _mapping(s.get("modules"))

    def choose(module: Module) -> Layout | None:
        own = next((each[name] for name in module.names if name in each), None)
        kind = kinds.get(str(own.get("weights"))) if isinstance(own, Mapping) else None
        return None if kind is None else of(layouts.quanto, kind=kind, wide=wide)

    return Recipe(name="quanto", choose=choose)


def _fp8(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """FP8 by blocks, as DeepSeek publishes and transformers writes it."""
    named = s.get("modules_to_not_convert")
    without = ["lm_head"] if named is None else _names(named)
    if str(s.get("producer", "")) == "" and str(s.get("method", "")) == "fp8":
        by_rows = s.get("weight_block_size") is None
        block = _square(s.get("weight_block_size") or [128, 128])
        layout = layouts.fp8_rows if by_rows else of(layouts.fp8_block, block=block)
        return Recipe(name="fp8", choose=_blocks(layout))
    scale = "float8_e8m0fnu" if s.get("scale_fmt") == "ue8m0" else "float32"
    static = s.get("activation_scheme") == "static"
    if "weight_block_size" not in s or (s["weight_block_size"] is None and not _five(transformers)):
        layout = of(layouts.scaled, kind="float8_e4m3fn", group=CHANNEL, wide=wide)
        return Recipe(name="fp8", choose=_linear(layout, without))
    given = s["weight_block_size"]
    square = None if given is None else _square(given)
    left = wide if _five(transformers) else ""
    layout = of(layouts.fp8_block, block=square, scale=scale, static=static, left=left)
    return Recipe(name="fp8_block", choose=_linear(layout, without))


def _mxfp4(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    def choose(module: Module) -> Layout | None:
        return layouts.gpt_oss if module.in_blocks and module.weight.routed else None

    return Recipe(name="mxfp4", choose=choose)


def _bitnet(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    if s.get("quantization_mode") == "online":
        return Recipe(name="bitnet", choose=lambda module: None)
    named = s.get("modules_to_not_convert")
    without = ["lm_head"] if named is None else _names(named)
    return Recipe(name="bitnet", choose=_linear(of(layouts.bitnet, wide=wide), without))


def _exl3(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    bits, head = s.get("bits"), s.get("head_bits", 6)
    codebook = str(s.get("codebook", "mul1"))
    if not isinstance(bits, int | float) or not isinstance(head, int | float):
        raise ValueError("bits is no number")
    if float(bits) != int(bits):
        raise InputError(
            f"EXL3 at {bits} bits mixes them by layer, which only its files tell",
            hint="name the checkpoint itself",
        )

    def choose(module: Module) -> Layout | None:
        if not (module.in_blocks or module.is_head):
            return None
        return of(layouts.exl3, bits=head if module.is_head else bits, codebook=codebook)

    return Recipe(name="exl3", choose=choose)


def _exl2(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    raise InputError(
        "EXL2 chooses bits for each group of rows, which only its files tell",
        hint="name the checkpoint itself",
    )


_MLX_USUAL = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}


def _mlx(s: Mapping[str, Any], wide: str, transformers: str) -> Recipe:
    """MLX: everything that it can pack, embeddings and head too, each module by its whole name."""
    top = _mlx_values(s, str(s.get("mode") or "affine"))

    def choose(module: Module) -> Layout | None:
        router = module.weight.role.startswith("router")
        if not (module.is_linear or module.is_head or module.is_table or router):
            return None
        names = {n for name in module.names for n in (name, _stacked(name))}
        own: Any = next((s[name] for name in names if name in s), None)
        if own is False:
            return None
        values = _mlx_values(own, "affine") if isinstance(own, Mapping) else top
        # what the group does not divide stays as it is
        divides = int(module.weight.inputs if not module.is_table else module.weight.outputs)
        if not isinstance(own, Mapping) and divides % top["group"]:
            return None
        return of(layouts.mlx, **values, wide=wide)

    return Recipe(name="mlx", choose=choose)


def _stacked(name: str) -> str:
    """What MLX calls the stack that an expert is in."""
    return re.sub(r"\.experts\.(?:\d+\.)?", ".switch_mlp.", name)


def _mlx_values(s: Mapping[str, Any], mode: str) -> dict[str, Any]:
    mode = str(s.get("mode") or mode)
    if mode not in _MLX_USUAL:
        raise InputError(f"MLX's mode {shorten(mode, 30)} is not known", hint="name the checkpoint")
    group, bits = _MLX_USUAL[mode]
    return {
        "bits": _int(s.get("bits"), bits, 1, 16),
        "group": _int(s.get("group_size"), group),
        "mode": mode,
    }


_READERS: Mapping[str, Callable[[Mapping[str, Any], str, str], Recipe]] = {
    "gptq": _gptq,
    "awq": _awq,
    "qqq": _qqq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "compressed-tensors": _compressed,
    "modelopt": _modelopt,
    "modelopt-fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "hqq": _hqq,
    "torchao": _torchao,
    "quanto": _quanto,
    "fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitnet": _bitnet,
    "exl3": _exl3,
    "exl2": _exl2,
    "mlx": _mlx,
}
