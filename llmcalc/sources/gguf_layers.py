"""What llama.cpp keeps for each layer of a GGUF file, by the file's own metadata and tensors.

Every architecture is read by one rule; the table below has those whose loader does something that
the file does not say: a window that it forces, ignores or takes a default for.

Source: llama-model.cpp (``load_hparams`` of each architecture) and llama-hparams.cpp as vendored
in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from llmcalc.anatomy import ONCE, Anatomy, Layers, Mixer, Op, Part, State, Weight
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.sources.gguf import Skipped, role_of
from llmcalc.sources.header import Header
from llmcalc.text import shorten

_MAX_LAYERS, _MAX_SIZE = 4096, 1 << 32
_BLOCK = re.compile(r"blk\.(\d{1,5})\.(.+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """What llama.cpp's loader of one architecture makes of a window.

    ``pattern`` n: every n-th layer sees everything, the last of each n, or with ``dense_first``
    the first. None: the file has to say it, as an array.
    """

    window: Literal["unread", "optional", "required"] = "optional"
    pattern: int | None = None
    dense_first: bool = False
    forced: int | None = None
    """A window that is used in place of the file's, unless that is 0."""
    default: int | None = None
    """A window where the file has none."""
    only_with_layers: int | None = None
    """The window is used where the model has so many layers, and ignored elsewhere."""
    chunked: bool = False


_UNREAD = Loader(window="unread")
_PLAIN = (
    *("llama", "falcon", "gpt2", "gptneox", "mpt", "baichuan", "starcoder", "refact", "stablelm"),
    *("qwen", "qwen2", "qwen2vl", "qwen2moe", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"),
    *("phi2", "phi3", "phimoe", "plamo", "codeshell", "orion", "internlm2", "minicpm", "gemma"),
    *("starcoder2", "xverse", "command-r", "dbrx", "olmo", "olmoe", "deepseek", "chatglm", "glm4"),
    *("glm4moe", "bitnet", "jais", "jais2", "nemotron", "exaone", "granite", "granitemoe"),
    *("chameleon", "bailingmoe", "bailingmoe2", "dots1", "arcee", "ernie4_5", "ernie4_5-moe"),
    *("hunyuan_vl", "hy_v3", "smollm3", "seed_oss", "grovemoe", "apertus", "minimax-m2", "cogvlm"),
    *("pangu-embedded", "mistral3", "paddleocr", "maincoder", "talkie", "qwen3tts", "pockettts"),
    *("minicpm3", "grok", "plm"),
)
"""Architectures whose loader reads no window, or reads one and switches it off (phi3)."""

LOADERS: dict[str, Loader] = {
    **dict.fromkeys(_PLAIN, _UNREAD),
    "llama4": Loader(default=8192, forced=8192, pattern=4, chunked=True),
    "plamo3": Loader(pattern=8),
    "gemma2": Loader(default=4096, pattern=2),
    "gemma3": Loader(pattern=6),
    "gemma4": Loader(window="required"),
    "cohere2": Loader(window="required", pattern=4),
    "cohere2moe": Loader(window="required", pattern=4, dense_first=True),
    "olmo2": Loader(pattern=4),
    "exaone4": Loader(default=4096, pattern=4, only_with_layers=64),
    "exaone-moe": Loader(window="required", pattern=4),
    "afmoe": Loader(window="required", pattern=4),
    "gemma3n": Loader(window="required", pattern=5),
    "smallthinker": Loader(forced=4096, pattern=4, dense_first=True),
    "laguna": Loader(pattern=4, dense_first=True),
    "gpt-oss": Loader(window="required", pattern=2),
    "muse-glimmer": Loader(window="required", pattern=4),
}

ENCODERS = (
    *("bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
    *("eurobert", "modern-bert", "gemma-embedding", "wavtokenizer-dec"),
    *("dream", "llada", "llada-moe", "rnd1"),
)
"""Architectures without a cache: encoders, and models that write all places at once."""

_NOT_KNOWN = {
    "eagle3": "a draft, which needs the model that it drafts for",
    "dflash": "a draft, which needs the model that it drafts for",
    "gemma4-assistant": "a draft, which needs the model that it drafts for",
}

_OTHER_ROLES = (
    (r"\w*norm(\.|$)", "norm"),
    (r"attn_o\.", "attn.o"),
    (r"attn", "attn"),
    (r"exp_probs", "router"),
    (r"ssm|time_mix|channel_mix|shortconv", "ssm"),
    (r"nextn\.", "mtp"),
)
"""What a tensor does whose name no family has (``gguf.role_of`` knows the others)."""


def anatomy(header: Header) -> Anatomy:
    """The parts of a GGUF of any architecture: its tensors as they are, and what llama.cpp keeps.

    A size that the metadata does not have, or a layer whose rule it does not say, is a
    ConfigError.
    """
    arch = architecture(header)
    note = (
        f"read from the file alone, as llama.cpp reads it: the tensors of {shorten(arch)} are"
        " counted, and not explained"
    )
    return Anatomy(arch, (*_weights(header), *mixers(header)), (note,), only_counted=True)


_NAMES = {"state": "recurrent", "none": "encoder"}


def as_kept(whole: Anatomy, header: Header) -> Anatomy:
    """A family's parts, with what llama.cpp keeps for this file in place of what the family says.

    Where both agree nothing changes; where they do not a note says so.
    """
    own = mixers(header)
    if _kept(own) == _kept(whole.mixers):
        return whole
    parts: list[Part] = [p for p in whole.parts if isinstance(p, Weight)]
    at = next((i for i, p in enumerate(whole.parts) if isinstance(p, Mixer)), len(parts))
    parts[at:at] = own
    note = "what the layers keep is what llama.cpp reads from this file, not the family's rule"
    return replace(whole, parts=tuple(parts), notes=(*whole.notes, note))


def _kept(found: Iterable[Mixer]) -> dict[int, set[tuple[Any, ...]]]:
    """What each layer keeps, for comparison."""
    by_layer: dict[int, set[tuple[Any, ...]]] = {}
    for m in found:
        latent = m.kind == "latent"  # one row, however it is told apart
        row = (int(m.per_token),) if latent else (int(m.keys), int(m.values), int(m.index_keys))
        held = (m.kind, *row, int(m.state), m.window)
        for i in m.layers.indices:
            by_layer.setdefault(i, set()).add(held)
    return by_layer


def architecture(header: Header) -> str:
    """``general.architecture``; a file without one is a ConfigError."""
    if header.architecture is None:
        raise ConfigError("the file has no general.architecture")
    return header.architecture


def mixers(header: Header) -> tuple[Mixer, ...]:
    """What each layer keeps under llama.cpp, layers alike together."""
    keys = _Keys(header)
    if keys.arch in _NOT_KNOWN:
        why = _NOT_KNOWN[keys.arch]
        raise ConfigError(f"the cache of {keys.arch} is not known: {why}")
    by_kind: dict[tuple[Any, ...], list[int]] = {}
    kinds: dict[tuple[Any, ...], Mixer] = {}
    for layer, mixer in _by_layer(keys, header):
        kept = (int(mixer.keys), int(mixer.values), int(mixer.index_keys), mixer.states)
        heads = (int(mixer.n_heads), int(mixer.n_kv_heads))
        alike = (mixer.kind, *kept, *heads, mixer.window, mixer.compress_rate)
        kinds.setdefault(alike, mixer)
        by_kind.setdefault(alike, []).append(layer)
    found = []
    names: dict[str, int] = {}
    for alike, layers in by_kind.items():
        mixer = kinds[alike]
        name = _NAMES.get(mixer.kind, mixer.kind)
        name = ("sliding" if mixer.window is not None else "full") if name == "kv" else name
        names[name] = names.get(name, 0) + 1
        number = f"_{names[name]}" if names[name] > 1 else ""
        count = Dim(len(layers), f"n_{name}{number}_layers")
        found.append(replace(mixer, layers=Layers(tuple(layers), count)))
    return tuple(found)


class _Keys:
    """The metadata of one architecture, every value checked on the way out."""

    def __init__(self, header: Header) -> None:
        self.arch = architecture(header)
        self.metadata: Mapping[str, Any] = header.metadata
        self.blocks = self.size("block_count", most=_MAX_LAYERS)
        self.trunk = self.blocks - self.size("nextn_predict_layers", 0)
        if self.trunk < 1:
            raise self.wrong("nextn_predict_layers", "leaves no layer")

    def get(self, key: str) -> Any:
        """What the file says, None where it says nothing."""
        return self.metadata.get(f"{self.arch}.{key}")

    def wrong(self, key: str, why: str) -> ConfigError:
        """The error for a key that cannot be."""
        return ConfigError(f"{shorten(self.arch)}.{key} {why}")

    def size(self, key: str, default: int | None = None, most: int = _MAX_SIZE) -> int:
        """One size; of a list, its largest."""
        value = self.get(key)
        if isinstance(value, list) and value:
            value = max(self._one(key, v, most) for v in value)
        if value is None:
            if default is None:
                raise self.wrong(key, "is missing from the file")
            return default
        return self._one(key, value, most)

    def _one(self, key: str, value: Any, most: int = _MAX_SIZE) -> int:
        if isinstance(value, Skipped):
            raise self.wrong(key, f"has {int(value):,} values, more than any model has layers")
        if not isinstance(value, int) or not 0 <= value <= most:
            raise self.wrong(key, f"is {shorten(str(value))}, no size of any model")
        return int(value)

    def sizes(self, key: str, default: int | None = None) -> list[int]:
        """One size for each layer, from an array or from a single number."""
        value = self.get(key)
        if isinstance(value, list):
            if len(value) < self.trunk:
                raise self.wrong(key, f"has {len(value)} values for {self.trunk} layers")
            return [self._one(key, v) for v in value]
        return [self.size(key, default)] * self.blocks


class _Names:
    """Sizes by name, so that one name has one value: what differs by layer gets a number."""

    def __init__(self) -> None:
        self.known: dict[str, dict[int, Dim]] = {}

    def dim(self, name: str, value: int) -> Dim:
        """The size under its name, or under the name and a number where another has it."""
        known = self.known.setdefault(name, {})
        number = f"_{len(known) + 1}" if known else ""
        return known.setdefault(value, Dim(value, name + number))


def _window(keys: _Keys, loader: Loader) -> tuple[int, list[bool]]:
    """The window, and which layers slide."""
    none = [False] * keys.blocks
    if loader.window == "unread":
        return 0, none
    if loader.only_with_layers not in (None, keys.blocks):
        return 0, none
    said = keys.get("attention.sliding_window")
    if said is None and loader.window == "required":
        raise keys.wrong("attention.sliding_window", "is missing from the file")
    window = keys.size("attention.sliding_window", loader.default or 0)
    if not window:
        return 0, none
    window = loader.forced or window
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, list):
        slides = [bool(v) for v in keys.sizes("attention.sliding_window_pattern")]
        return window, slides
    n = keys.size("attention.sliding_window_pattern", loader.pattern or -1)
    if n < 0:
        raise keys.wrong(
            "attention.sliding_window_pattern",
            f"is missing: the file does not say which layers see only {window:,} tokens",
        )
    if loader.dense_first:
        return window, [n == 0 or i % n != 0 for i in range(keys.blocks)]
    return window, [n == 0 or i % n < n - 1 for i in range(keys.blocks)]


def _by_layer(keys: _Keys, header: Header) -> list[tuple[int, Mixer]]:
    """A mixer for each layer that keeps something, or one for each thing that it keeps."""
    if keys.arch in ENCODERS:
        return [(i, Mixer("none", ONCE)) for i in range(keys.trunk)]
    heads = keys.sizes("attention.head_count", 0)
    kv_heads = heads
    if keys.get("attention.head_count_kv") is not None:
        kv_heads = keys.sizes("attention.head_count_kv")
    d_model = keys.size("embedding_length")
    own = d_model // heads[0] if heads[0] else 0
    d_qk = keys.size("attention.key_length", own)
    d_v = keys.size("attention.value_length", own)
    swa_qk = keys.size("attention.key_length_swa", d_qk)
    swa_v = keys.size("attention.value_length_swa", d_v)
    latent = (
        keys.get("attention.key_length_mla") is not None
        and keys.get("attention.value_length_mla") is not None
    )
    if keys.arch == "deepseek4":
        return _compressed(keys, heads, d_qk)
    loader = LOADERS.get(keys.arch, Loader())
    window, slides = _window(keys, loader)
    recurrent = _recurrent(keys, header, kv_heads)
    index = _index(keys, d_v)
    shared = keys.size("attention.shared_kv_layers", 0)
    # llama-model.cpp, LLM_ARCH_GEMMA3N: n_layer_kv_from_start is 20 in the code
    last = min(20, keys.trunk) if keys.arch == "gemma3n" else keys.trunk - shared
    found: list[tuple[int, Mixer]] = []
    names = _Names()
    for i in range(keys.trunk):
        state, attends = recurrent[i]
        if state:
            found.append((i, Mixer("state", ONCE, states=state)))
        if not attends or not kv_heads[i]:
            continue
        if i >= last:
            found.append((i, Mixer("shared", ONCE)))
            continue
        wide_k, wide_v = (swa_qk, swa_v) if slides[i] else (d_qk, d_v)
        extra_k, extra_v = index[i]
        n_kv = names.dim("n_kv_heads", kv_heads[i])
        keys_wide, values_wide = names.dim("d_qk", wide_k), names.dim("d_v", wide_v)
        keeper = Mixer(
            "latent" if latent else "kv",
            ONCE,
            n_heads=names.dim("n_heads", heads[i]),
            n_kv_heads=n_kv,
            d_qk=keys_wide,
            d_v=values_wide,
            keys=n_kv * keys_wide,
            values=Dim(0) if latent else n_kv * values_wide + Dim(extra_v),
            index_keys=Dim(extra_k),
            window=Dim(window, "window") if slides[i] else None,
            chunked=slides[i] and loader.chunked,
        )
        found.append((i, keeper))
    return _more(keys, found)


def _compressed(keys: _Keys, heads: list[int], d_qk: int) -> list[tuple[int, Mixer]]:
    """DeepSeek-V4: a window of single keys, and one key for every few tokens in some layers.

    What the compressor holds of a group that is not full is float32, per sequence.
    """
    window = Dim(keys.size("attention.sliding_window"), "window")
    index = keys.size("attention.indexer.key_length")
    width = Dim(d_qk, "d_qk")
    found: list[tuple[int, Mixer]] = []
    rates = keys.sizes("attention.compress_ratios", 0)
    for i in range(keys.trunk):
        own = Mixer("latent", ONCE, n_heads=Dim(heads[i], "n_heads"), keys=width, window=window)
        found.append((i, own))
        rate = rates[i]
        if not rate:
            continue
        indexed = index if rate == 4 else 0
        held = 8 * rate * (d_qk + index) if indexed else 2 * rate * d_qk
        compressed = Mixer(
            "compressed",
            ONCE,
            keys=width,
            index_keys=Dim(indexed),
            compress_rate=Dim(rate, "rate"),
            states=_states(held, 0),
        )
        found.append((i, compressed))
    return found


def _more(keys: _Keys, found: list[tuple[int, Mixer]]) -> list[tuple[int, Mixer]]:
    """Slots beyond the layers: loops over the same weights, a router that attends."""
    if keys.arch == "nanbeige":
        loops = keys.size("num_loops", 1, most=_MAX_LAYERS // keys.trunk)
        return [(i + n * keys.trunk, m) for n in range(loops) for i, m in found]
    if keys.arch == "graniteswitch" and found:
        last = found[-1][1]
        one = Dim(1)
        router = replace(last, n_kv_heads=one, keys=one * last.d_qk, values=one * last.d_v)
        return [*found, (keys.trunk, router)]
    return found


def _index(keys: _Keys, d_v: int) -> list[tuple[int, int]]:
    """Keys (and, for MiniMax-M3, values) that an indexer of sparse attention keeps per layer."""
    none = [(0, 0)] * keys.blocks
    wide = keys.size("attention.indexer.key_length", 0)
    if not wide or not keys.size("attention.indexer.top_k", 0):
        return none
    if keys.arch == "minimax-m3":
        first = keys.size("leading_dense_block_count", 0)
        return [(wide, d_v) if i >= first else (0, 0) for i in range(keys.blocks)]
    if keys.size("attention.indexer.kpool", 0):
        wide *= 3
    types = keys.get("attention.indexer.types")
    if types is None:
        return [(wide, 0)] * keys.blocks
    return [(wide, 0) if on == 1 else (0, 0) for on in keys.sizes("attention.indexer.types")]


def _recurrent(
    keys: _Keys, header: Header, kv_heads: list[int]
) -> list[tuple[tuple[State, ...], bool]]:
    """Of each layer its recurrent state, and whether it attends beside or instead."""
    state = _state(keys)
    if keys.get("wkv.head_size") is not None:
        return [(state, False)] * keys.blocks
    if not state:
        return [((), True)] * keys.blocks
    if keys.arch == "minimax-01":
        n = keys.size("full_attention_interval", 8)
        full = [bool(n) and (i + 1) % n == 0 for i in range(keys.blocks)]
        return [((), True) if attends else (state, False) for attends in full]
    mixed: dict[int, set[str]] = {}
    for name in header.tensors:
        layer, tail = _placed(name)
        if layer is not None:
            own = mixed.setdefault(layer, set())
            own.add("keys" if tail.startswith("attn_k.") else re.split("[_.]", tail)[0])
    out = []
    for i in range(keys.blocks):
        own = mixed.get(i, set())
        keeps = bool(own & {"ssm", "shortconv"})
        out.append((state if keeps else (), bool(kv_heads[i]) and (not keeps or "keys" in own)))
    return out


def _state(keys: _Keys) -> tuple[State, ...]:
    """What one recurrent layer keeps per sequence, float32: R (a convolution's inputs) and S.

    Source: ``n_embd_r`` and ``n_embd_s`` in llama-hparams.cpp.
    """
    wkv = keys.size("wkv.head_size", 0)
    d_model = keys.size("embedding_length")
    if wkv:
        shifts = keys.size("token_shift_count", 2)
        return _states(shifts * d_model, d_model * wkv)
    short = keys.size("shortconv.l_cache", 0)
    if short:
        return _states(d_model * (short - 1), 0)
    heads = keys.size("attention.head_count", 0)
    if keys.arch == "minimax-01":
        return _states(0, heads * keys.size("attention.key_length") ** 2)
    kernel = keys.size("ssm.conv_kernel", 0)
    delta = keys.size("kda.head_dim", 0)
    if delta:
        inner = heads * delta
        return _states(3 * (kernel - 1 if kernel else 3) * inner, delta * inner)
    if not kernel:
        return ()
    inner, wide = keys.size("ssm.inner_size"), keys.size("ssm.state_size")
    groups = keys.size("ssm.group_count", 0)
    return _states((kernel - 1) * (inner + 2 * groups * wide), wide * inner)


def _states(r: int, s: int) -> tuple[State, ...]:
    """R and S as float32 vectors.

    R is given as it is kept, a column less than the convolution is wide, so neither loses one.
    """
    sizes = [n for n in (r, s) if n > 0]
    return tuple(State("recurrent", Dim(n), Dim(1), "float32") for n in sizes)


def _placed(name: str) -> tuple[int | None, str]:
    """A tensor's layer, None outside of the stack, and what its name says beside."""
    found = _BLOCK.fullmatch(name)
    return (None, name) if found is None else (int(found[1]), found[2])


def _weights(header: Header) -> list[Weight]:
    """The file's tensors, layers of one name and shape together."""
    together: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for name, stored in header.tensors.items():
        layer, tail = _placed(name)
        key = name if layer is None else f"blk.{{layer}}.{tail}"
        together.setdefault((key, stored.shape), []).append(layer or 0)
    active = header.metadata.get(f"{architecture(header)}.expert_used_count")
    used = active if isinstance(active, int) else 1
    return [_weight(name, shape, layers, used) for (name, shape), layers in together.items()]


def _weight(name: str, shape: tuple[int, ...], layers: list[int], used: int) -> Weight:
    tail = name.removeprefix("blk.{layer}.")
    others = (role for pattern, role in _OTHER_ROLES if re.match(pattern, tail))
    role = role_of(tail) or next(others, "other")
    op: Op = "lookup" if role.startswith("embed.") else "matmul" if len(shape) > 1 else "scale"
    stacked = "_exps." in name and len(shape) == 3
    sizes = tuple(Dim(n) for n in (shape[1:] if stacked else shape))
    where = ONCE if tail == name else Layers(tuple(layers), Dim(len(layers), "layers"))
    experts = Dim(shape[0], "n_experts") if stacked else Dim(1)
    return Weight(
        name=name,
        shape=sizes,
        op=op,
        role=role,
        layers=where,
        experts=experts,
        active=Dim(min(used, shape[0]), "n_active") if stacked else Dim(1),
        stacked=stacked,
    )
