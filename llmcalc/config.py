"""Config: a model's sizes under our names, whatever the spelling in the file they came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from llmcalc.anatomy import MOST_LAYERS
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.text import shown

SIZES: dict[str, tuple[str, ...]] = {
    "d_model": ("hidden_size", "n_embd", "d_model", "dim", "model_dim", "embedding_length"),
    "n_layers": (
        "num_hidden_layers",
        "n_layer",
        "num_layers",
        "n_layers",
        "num_transformer_layers",
        "block_count",
    ),
    "n_heads": ("num_attention_heads", "n_head", "num_heads", "n_heads", "attention.head_count"),
    "n_kv_heads": (
        "num_key_value_heads",
        "num_kv_heads",
        "n_head_kv",
        "multi_query_group_num",
        "n_kv_heads",
        "attention.head_count_kv",
    ),
    "head_dim": ("head_dim", "d_kv", "kv_channels", "attention_head_dim", "attention.key_length"),
    "v_head_dim": ("v_head_dim", "attention.value_length"),
    "d_ff": (
        "intermediate_size",
        "n_inner",
        "ffn_dim",
        "d_ff",
        "ffn_hidden_size",
        "dim_ff",
        "feed_forward_length",
    ),
    "vocab": ("vocab_size", "n_vocab", "padded_vocab_size"),
    "max_context": (
        "max_position_embeddings",
        "n_positions",
        "n_ctx",
        "seq_length",
        "max_sequence_length",
        "context_length",
    ),
    "window": ("sliding_window", "sliding_window_size", "window_size", "attention.sliding_window"),
    "n_experts": (
        "num_local_experts",
        "n_routed_experts",
        "num_experts",
        "moe_num_experts",
        "expert_count",
    ),
    "n_active_experts": (
        "num_experts_per_tok",
        "num_experts_per_token",
        "moe_topk",
        "moe_k",
        "top_k_experts",
        "expert_used_count",
    ),
    "n_shared_experts": (
        "num_shared_experts",
        "n_shared_experts",
        "moe_num_shared_experts",
        "expert_shared_count",
    ),
    "d_ff_expert": ("moe_intermediate_size", "expert_feed_forward_length"),
    "n_dense_layers": ("first_k_dense_replace", "leading_dense_block_count"),
    "q_lora_rank": ("q_lora_rank", "attention.q_lora_rank"),
    "kv_lora_rank": ("kv_lora_rank", "attention.kv_lora_rank"),
    "qk_nope_head_dim": ("qk_nope_head_dim",),
    "qk_rope_head_dim": ("qk_rope_head_dim", "rope.dimension_count"),
    "d_state": ("mamba_d_state", "state_size", "ssm_state_size", "ssm.state_size"),
    "d_conv": ("mamba_d_conv", "conv_kernel", "conv_kernel_size", "ssm.conv_kernel"),
}
"""Every spelling of each size: ours first decides nothing, the first key present counts."""

KEY = "per_layer_config"
"""Where a config overrides single layers: their numbers in text, each with its own values."""

_CORE = ("d_model", "n_layers", "n_heads", "vocab", "d_ff")
_MAY_BE_ZERO = ("n_dense_layers", "n_shared_experts")
_LIMITS = {"n_layers": MOST_LAYERS, "n_experts": 100_000}
_LARGEST = 2**40
_ABSENT: Any = object()


LOOKED: ContextVar[set[str] | None] = ContextVar("looked", default=None)
"""Where somebody asks for it: every key that a family looks for."""


class Config:
    """A model's sizes, read on demand from a raw mapping in any known spelling.

    ``c.d_model`` is ``Dim(768, "d_model")``; a name outside ``SIZES`` is read literally. A key that
    is absent takes the default of the reference implementation's class (``defaults``), which is
    noted; a key that is null does not. A size that is needed and not to be had is a ConfigError
    that lists the keys looked for.
    """

    def __init__(
        self,
        raw: Mapping[str, Any],
        *,
        defaults: Mapping[str, Any] | None = None,
        nested: bool = False,
        section: str | None = None,
    ) -> None:
        self.raw = raw
        self.defaults: Mapping[str, Any] = defaults or {}
        self.is_nested = nested
        self.section = section
        """Whose sizes these are, inside a larger config."""
        self.assumed: dict[str, Any] = {}
        self.notes: list[str] = []

    @property
    def family(self) -> str:
        """The ``model_type``, as the file spells it."""
        return str(self.raw.get("model_type", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """A raw value: the file's, else the class default, else ``default``.

        Used for lists, flags and patterns.
        """
        self._look(key)
        if key in self.raw:
            return self.raw[key]
        if key in self.defaults:
            if self.defaults[key] is not None and not isinstance(self.defaults[key], bool):
                self.assumed[key] = self.defaults[key]
            return self.defaults[key]
        return default

    def flag(self, key: str, default: bool = False) -> bool:
        """A yes or no."""
        value = self.get(key, default)
        if value is not None and not isinstance(value, bool | int):
            raise ConfigError(
                f"{self.family or 'config'}: {key} is {shown(value, 60)}, not true or false"
            )
        return bool(value)

    def size(self, name: str, default: int | None = None, *keys: str, least: int = 1) -> Dim:
        """The size of that name, else ``default``.

        Keys to look for may be given, else those of ``SIZES``.
        """
        value = self._find(name, keys)
        if value is _ABSENT or value is None:
            if default is not None:
                return _called(default, name)
            names = keys or SIZES.get(name, (name,))
            looked = ", ".join(names)
            option = name if name in names or not keys else keys[0]
            where, path = self.section or "the config", f"{self.section}." if self.section else ""
            raise ConfigError(
                f"{self.family or 'config'}: {where} has no {name} (looked for {looked})",
                hint=f"give it with `--set {path}{option}=...`",
                lacks=(self.section, name),
            )
        return _called(_whole(self.family, name, value, least), name)

    def optional(self, name: str, *keys: str) -> Dim | None:
        """The size of that name, or None where it is absent, null or zero."""
        value = self._find(name, keys)
        if value is _ABSENT or value is None or value is False or value == 0:
            return None
        return _called(_whole(self.family, name, value, 1), name)

    def __getattr__(self, name: str) -> Dim:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.size(name, least=1 if name in SIZES and name not in _MAY_BE_ZERO else 0)

    @property
    def head_dim(self) -> Dim:
        """Width of one head; where the file has none, d_model / n_heads, which must divide."""
        given = self.optional("head_dim")
        if given is not None:
            return given
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"{self.family}: {int(self.n_heads)} heads do not divide d_model"
                f" {int(self.d_model)}",
                hint=self._taken("d_model", "n_heads")
                or "give the width of one head with `--set head_dim=...`",
            )
        return Dim(int(self.d_model) // int(self.n_heads), "head_dim")

    @property
    def n_kv_heads(self) -> Dim:
        """Key/value heads; as many as query heads where the file has none."""
        found = self.size("n_kv_heads", int(self.n_heads))
        if self.n_heads % found:
            raise ConfigError(
                f"{self.family}: {int(found)} key/value heads do not divide {int(self.n_heads)}"
                " query heads",
                hint=self._taken("n_heads", "n_kv_heads"),
            )
        return found

    def _taken(self, *names: str) -> str | None:
        """The option that gives a size that the file lacks and a default stood for."""
        path = f"{self.section}." if self.section else ""
        for name in names:
            key = next((k for k in SIZES[name] if k in self.assumed), None)
            if key is not None:
                return f"{self.assumed[key]} is a default: give it with `--set {path}{name}=...`"
        return None

    @property
    def split_head_dim(self) -> Dim:
        """d_model / n_heads, for families that know no other width of a head."""
        if self.d_model % self.n_heads:
            raise ConfigError(
                f"{self.family}: {int(self.n_heads)} heads do not divide d_model"
                f" {int(self.d_model)}"
            )
        return Dim(int(self.d_model) // int(self.n_heads), "head_dim")

    def sliding(self, pattern: Callable[[int], Any] | None = None) -> frozenset[int]:
        """The layers that see a window: as ``layer_types`` lists them, else by ``pattern``, else
        all if one is set.
        """
        kinds = self.kinds("layer_types")
        if kinds is not None:
            return frozenset(
                i
                for i, kind in enumerate(kinds)
                if kind in ("sliding_attention", "chunked_attention")
            )
        if pattern is not None:
            return frozenset(i for i in range(self.layers) if pattern(i))
        return frozenset(range(self.layers)) if self.optional("window") else frozenset()

    def kinds(self, key: str) -> list[Any] | None:
        """A list with one entry per layer, or None; one of another length is a ConfigError."""
        kinds = self.get(key)
        if kinds is None:
            return None
        if not isinstance(kinds, list) or len(kinds) != self.n_layers:
            size = len(kinds) if isinstance(kinds, list) else repr(kinds)[:40]
            raise ConfigError(
                f"{self.family}: {key} has {size} entries for {int(self.n_layers)} layers",
                hint=self._taken("n_layers")
                or f"set by hand? `--set {key}=null` takes the family's own pattern",
            )
        return kinds

    @property
    def tied(self) -> bool:
        """Whether the head uses the embedding's weight."""
        return self.flag("tie_word_embeddings")

    @property
    def layers(self) -> int:
        """The number of layers as a plain int."""
        return int(self.n_layers)

    def nested(self, key: str, defaults: Mapping[str, Any] | None = None) -> Config:
        """A config inside this one; where it is missing this one itself, for files that
        are flat.
        """
        inner = self.raw.get(key)
        if not isinstance(inner, Mapping):
            return self
        return Config(inner, defaults=defaults, nested=True, section=key)

    def _look(self, *keys: str) -> None:
        looked = LOOKED.get()
        if looked is not None:
            looked.update(keys)

    def _find(self, name: str, keys: tuple[str, ...]) -> Any:
        aliases = keys or SIZES.get(name, (name,))
        self._look(*aliases, name)
        for key in (*aliases, name):
            if key in self.raw:
                return self.raw[key]
        if name in _CORE and not self.is_nested and not keys:
            return _ABSENT
        for key in aliases:
            if key in self.defaults:
                if self.defaults[key] is not None:
                    self.assumed[key] = self.defaults[key]
                return self.defaults[key]
        return _ABSENT


def _called(value: int, name: str) -> Dim:
    """A size under that name, unless it has one of its own."""
    return value if isinstance(value, Dim) else Dim(value, name)


def _whole(family: str, name: str, value: Any, least: int) -> int:
    where = family or "config"
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(value)
        raise ConfigError(f"{where}: {name} is {shown[:60]}, not a whole number")
    if value < least:
        raise ConfigError(f"{where}: {name} is {_short(value)}; it must be at least {least}")
    if value > _LIMITS.get(name, _LARGEST):
        raise ConfigError(f"{where}: {name} is {_short(value)}, more than any model has")
    return value


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**18 else f"about 1e{len(str(abs(value))) - 1}"
