"""A model as one list of parts in forward order: weights, and what mixes tokens and keeps something
between them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from llmcalc.dims import Dim, product, total
from llmcalc.errors import ConfigError, InputError

MOST_LAYERS = 1000
Op = Literal["lookup", "matmul", "scale", "add", "conv", "state"]
_TOWERS = ("vision", "audio")
"""How the roles of what sees and hears begin."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Which layers hold a part, and what their number is called."""

    indices: tuple[int, ...]
    count: Dim

    @staticmethod
    def all(count: int, name: str = "n_layers") -> Layers:
        """Every layer of a stack; more than any model has is a ConfigError."""
        if count > MOST_LAYERS:
            raise ConfigError(f"{name} is {count}, more than any model has")
        return Layers(tuple(range(count)), count if isinstance(count, Dim) else Dim(count, name))

    def where(self, name: str, keep: Callable[[int], Any]) -> Layers:
        """The layers that ``keep`` accepts, under a name of their own; all of them keep
        this one's.
        """
        indices = tuple(i for i in self.indices if keep(i))
        return self if indices == self.indices else Layers(indices, Dim(len(indices), name))

    def only(self, name: str, indices: Collection[int]) -> Layers:
        """The layers with those numbers, under a name of their own."""
        return self.where(name, lambda i: i in indices)

    def split(self, name: str, keep: Callable[[int], Any]) -> tuple[Layers, Layers]:
        """The layers that ``keep`` accepts, named ``n_{name}_layers``, and the others."""
        chosen = self.where(f"n_{name}_layers", keep)
        inside = set(chosen.indices)
        return chosen, self.where(f"n_other_than_{name}_layers", lambda i: i not in inside)

    def by(self, name: str, value: Callable[[int], Any]) -> Iterator[tuple[Any, Layers]]:
        """Groups of layers of equal value, in order of first use, for sizes that differ
        by layer.
        """
        values = {i: value(i) for i in self.indices}
        for number, wanted in enumerate(dict.fromkeys(values.values())):
            yield (
                wanted,
                self.only(
                    f"n_{name}{number}_layers", [i for i in self.indices if values[i] == wanted]
                ),
            )


ONCE = Layers((0,), Dim(1))


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor as the published checkpoint names it, or one per layer and expert under one name
    with placeholders.

    ``shape`` is that of one expert, rows first. ``stacked``: all experts are one tensor, expert
    first; ``rows``: one tensor, every expert's rows one below the other; ``transposed``: stored
    (in, out). ``uses`` counts how often one token passes it where layers share it; ``extra`` is in
    the file but outside the model (multi-token prediction); ``also`` is another name under which
    published files hold the tensor; ``copy_of`` the weight that it was tied to before the two were
    put on different devices.
    """

    name: str
    shape: tuple[Dim, ...]
    op: Op
    role: str
    layers: Layers = ONCE
    experts: Dim = field(default_factory=lambda: Dim(1))
    active: Dim = field(default_factory=lambda: Dim(1))
    uses: Dim = field(default_factory=lambda: Dim(1))
    tied_to: str | None = None
    stacked: bool = False
    buffer: bool = False
    transposed: bool = False
    extra: bool = False
    rows: bool = False
    also: str | None = None
    copy_of: str | None = None

    @property
    def per_layer(self) -> Dim:
        """Elements of one layer, all experts."""
        return product([*self.shape]) * self.experts

    @property
    def params(self) -> Dim:
        """Elements of all layers."""
        return self.layers.count * self.per_layer

    @property
    def used(self) -> Dim:
        """Elements of one layer that one token passes through."""
        return product([*self.shape]) * self.active

    @property
    def full_shape(self) -> tuple[Dim, ...]:
        """The shape as stored: a stacked tensor has its experts as first axis."""
        if self.rows:
            return (self.experts * self.shape[0], *self.shape[1:])
        return (self.experts, *self.shape) if self.stacked else self.shape

    @property
    def applied_shape(self) -> tuple[Dim, ...]:
        """One expert's shape as it is multiplied: outputs first, however the file has it."""
        return tuple(reversed(self.shape)) if self.transposed else self.shape

    def turned(self, tensor: Any) -> Any:
        """An array between how the file has it and how it is multiplied, outputs first."""
        return tensor.transpose(-1, -2) if self.transposed else tensor

    @property
    def counted(self) -> bool:
        """Whether the elements are parameters of the model, once."""
        return not (self.buffer or self.tied_to or self.extra)

    @property
    def routed(self) -> bool:
        """Whether it is of routed experts, be it of a single one, as on a rank that holds one."""
        return self.experts > 1 or self.stacked or self.rows or self.by_expert

    @property
    def by_expert(self) -> bool:
        """Whether the file has one tensor for each expert."""
        return "{expert}" in self.name

    @property
    def in_stack(self) -> bool:
        """Whether it belongs to the stack of layers, and not before or behind it."""
        return "{layer}" in self.name

    @property
    def tower(self) -> bool:
        """Whether it belongs to what sees or hears."""
        return self.role.startswith(_TOWERS)

    @property
    def text(self) -> bool:
        """Whether text passes through it: no tower, no projector behind one, no token beyond the
        next.
        """
        return not (self.extra or self.tower or self.role.startswith("projector"))

    @property
    def stored(self) -> bool:
        """Whether the file holds it under its own name, as part of the model."""
        return not (self.tied_to or self.extra)

    @property
    def is_matrix(self) -> bool:
        """Whether something is multiplied by it that has more than one number."""
        return self.op == "matmul" and len(self.shape) >= 2

    @property
    def output_axis(self) -> int:
        """The axis of ``shape`` along which the outputs lie; a table's outputs are its columns."""
        return len(self.shape) - 1 if self.transposed or self.op == "lookup" else 0

    @property
    def input_axis(self) -> int:
        """The axis along which the inputs lie; a table's inputs are its rows.

        A vector's is its only one.
        """
        if self.op == "lookup":
            return 0
        return max(len(self.shape) - 2, 0) if self.transposed else len(self.shape) - 1

    @property
    def outputs(self) -> Dim:
        """How many numbers one token gets out of it, of one expert.

        GPT-2 stores them along the columns.

        >>> shape = (Dim(768), Dim(3072))
        >>> gpt2 = Weight("h.{layer}.mlp.c_fc", shape, "matmul", "mlp.up", transposed=True)
        >>> gpt2.inputs, gpt2.outputs
        (768, 3072)
        """
        return self.shape[self.output_axis] if self.shape else Dim(1)

    @property
    def inputs(self) -> Dim:
        """How many numbers go into it, of one expert; a table's are its rows."""
        return self.shape[self.input_axis] if self.shape else Dim(1)

    def names(self) -> Iterator[str]:
        """Every tensor name, layer by layer."""
        for layer in self.layers.indices:
            name = self.name.replace("{layer}", str(layer))
            if self.by_expert:
                for expert in range(self.experts):
                    yield name.replace("{expert}", str(expert))
            else:
                yield name


@dataclass(frozen=True, slots=True)
class State:
    """What a recurrent mixer keeps per sequence and layer, whatever the length:

    ``channels`` x ``width`` elements.
    """

    kind: Literal["conv", "recurrent"]
    channels: Dim
    width: Dim
    dtype: str | None = None
    """A fixed dtype; None is the cache's own."""
    always: bool = False
    """Whether every engine keeps it in that dtype, whatever it is told of others."""

    @property
    def size(self) -> Dim:
        """Elements per sequence and layer."""
        return self.channels * self.width


MixerKind = Literal["kv", "latent", "cross", "state", "shared", "compressed", "none"]


@dataclass(frozen=True, slots=True)
class Mixer:
    """What mixes tokens in some layers, and what it keeps between them.

    ``keys`` and ``values`` are elements per token and layer; ``window`` is the most tokens one
    query sees. A mixer of kind ``shared`` reads the cache of an earlier layer and keeps none;
    ``cross`` keeps one entry per token of another sequence of at most ``max_source`` tokens;
    ``none`` attends without a cache (encoders).
    """

    kind: MixerKind
    layers: Layers
    n_heads: Dim = field(default_factory=lambda: Dim(0))
    n_kv_heads: Dim = field(default_factory=lambda: Dim(0))
    d_qk: Dim = field(default_factory=lambda: Dim(0))
    d_v: Dim = field(default_factory=lambda: Dim(0))
    keys: Dim = field(default_factory=lambda: Dim(0))
    values: Dim = field(default_factory=lambda: Dim(0))
    index_keys: Dim = field(default_factory=lambda: Dim(0))
    window: Dim | None = None
    chunked: bool = False
    states: tuple[State, ...] = ()
    max_source: Dim | None = None
    extra_tokens: Dim | None = None
    """Tokens that stand before every sequence and stay in its cache: soft prompts."""
    compress_rate: Dim | None = None
    """How many tokens a compressor turns into one, beyond the window (DeepSeek-V4)."""
    sight: Dim | None = None
    """The most tokens one query sees in layers that mask locally and still keep every token
    (GPT-Neo).
    """
    cached_heads: Dim | None = None
    """Key/value heads that the reference implementation caches, where it repeats them first
    (Falcon).
    """

    @property
    def per_token(self) -> Dim:
        """Elements kept per token and layer."""
        return self.keys + self.values + self.index_keys

    @property
    def state(self) -> Dim:
        """Elements kept per sequence and layer, whatever its length."""
        return total([s.size for s in self.states])

    @property
    def scores(self) -> Dim:
        """Multiply-adds per query-key pair, scores and mix together."""
        return self.n_heads * (self.d_qk + self.d_v)


_BACK = ("attn.o", "mlp.down", "ssm.out")
"""Roles of the matrices that lead back into the stream between the layers."""

Part = Weight | Mixer
Parts = Iterator[Part]


@dataclass(frozen=True, slots=True)
class Anatomy:
    """A model: its family's name, its parts in forward order, and what has to be said
    about them.
    """

    family: str
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    """What stands beside the language model and is not among the parts, by its config's key."""
    predicting: tuple[Part, ...] = ()
    """Modules of multi-token prediction, which stand beside the model and are not among its parts.
    """
    predicting_said: str = ""
    """What they hold, in one line; also of those whose parts are not known."""
    only_counted: bool = False
    """Its tensors are those of a file: what they are for is known by their names alone."""

    def explained(self, question: str) -> None:
        """Parts that are only counted cannot answer what needs their purpose: an InputError."""
        if self.only_counted:
            raise InputError(
                f"the parts of {self.family} are only counted, so {question} is not known",
                hint="kvcache, fit, speed and params count them as the file stores them",
            )

    @property
    def cache_known(self) -> bool:
        """Whether it is known what the layers keep: not where only tensors are counted."""
        return bool(self.mixers) or not self.only_counted

    @property
    def weights(self) -> tuple[Weight, ...]:
        """The tensors, in forward order."""
        return tuple(p for p in self.parts if isinstance(p, Weight))

    @property
    def mixers(self) -> tuple[Mixer, ...]:
        """The token mixers, in forward order."""
        return tuple(p for p in self.parts if isinstance(p, Mixer))

    @property
    def text(self) -> tuple[Weight, ...]:
        """The tensors that text passes through, tied ones too."""
        return tuple(w for w in self.weights if w.text)

    @property
    def n_layers(self) -> int:
        """How many layers the text passes through.

        Of an encoder-decoder, those of the longer stack.
        """
        return 1 + max((i for w in self.text if w.in_stack for i in w.layers.indices), default=-1)

    @property
    def d_model(self) -> int:
        """The width of the stream between the layers; of a model without layers, that of
        its table.
        """
        back = (w for w in self.text if w.is_matrix and w.in_stack and w.role in _BACK)
        table = (w for w in self.text if w.role == "embed.token")
        return next((int(w.outputs) for found in (back, table) for w in found), 0)

    @property
    def d_ff(self) -> int:
        """The widest inner width of an MLP, one expert's where they are routed.

        0 where there is none.
        """
        downs = (w for w in self.text if w.is_matrix and w.role == "mlp.down")
        return max((int(w.inputs) for w in downs), default=0)

    @property
    def vocab(self) -> int:
        """Rows of the table of tokens; 0 where only the layers are described."""
        return next((int(w.inputs) for w in self.text if w.role == "embed.token"), 0)

    @property
    def n_experts(self) -> int:
        """The most routed experts of a layer; 0 where none are routed."""
        return max((int(w.experts) for w in self.text if w.routed), default=0)

    @property
    def sees(self) -> bool:
        """Whether the model takes pictures."""
        return any(w.role.startswith("vision") for w in self.weights)

    @property
    def n_kv_heads(self) -> int | None:
        """The most key/value heads of a layer that keeps any, None where none does."""
        return max((int(m.n_kv_heads) for m in self.mixers if m.kind == "kv"), default=None)


def under(prefix: str, parts: Iterable[Part]) -> Parts:
    """The same parts with a prefix before every tensor name, for a model inside a larger one."""
    for part in parts:
        if isinstance(part, Weight):
            yield replace(
                part, name=prefix + part.name, tied_to=part.tied_to and prefix + part.tied_to
            )
        else:
            yield part


def rename(parts: Iterable[Part], *changes: tuple[str, str]) -> Parts:
    """The same parts with pieces of their names replaced."""
    for part in parts:
        if isinstance(part, Weight):
            name, tied = part.name, part.tied_to
            for old, new in changes:
                name, tied = name.replace(old, new), tied and tied.replace(old, new)
            part = replace(part, name=name, tied_to=tied)
        yield part


def marked(parts: Iterable[Part], **fields: Any) -> Parts:
    """The same parts with some fields set, on weights (``extra=True``) alone."""
    for part in parts:
        yield replace(part, **fields) if isinstance(part, Weight) else part
