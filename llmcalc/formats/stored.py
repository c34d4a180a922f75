"""What a model's weights are stored as, and what that takes: the one place where it is counted.

``params``, ``fit``, ``speed``, ``train``, ``dtype`` and ``check`` ask ``stored`` and nothing else.
A format is a dtype for everything, a scheme that packs some matrices, a GGUF file type, or a
checkpoint that is there: that one is always counted by its own header.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from llmcalc.anatomy import Anatomy, Layers, Weight
from llmcalc.dims import Dim, ceil_div, product, total
from llmcalc.errors import InputError
from llmcalc.formats.element import ALIASES, DTYPES, DType, find_dtype
from llmcalc.formats.file_type import BASES, mix
from llmcalc.formats.layouts import Layout
from llmcalc.formats.recipe import Recipe
from llmcalc.formats.scheme import SCHEMES, Packing, Scheme, find_scheme
from llmcalc.parallel import cut_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A weight in some layers as it is stored on one rank: its format, its elements, its bytes."""

    weight: Weight
    layers: Layers
    form: str
    elements: Dim
    n_bytes: Dim
    role: str
    """The weight's, or that of the piece which a converter makes of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """Every tensor in one dtype."""

    wide: DType

    @property
    def name(self) -> str:
        """The dtype's name."""
        return self.wide.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Matrices packed by a scheme, everything else in ``wide``."""

    scheme: Scheme
    packing: Packing
    wide: DType

    @property
    def name(self) -> str:
        """The scheme's name."""
        return self.scheme.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What a config says of its files: some modules packed, each in its own way, the rest wide."""

    recipe: Recipe
    wide: DType

    @property
    def name(self) -> str:
        """What the config calls its quantisation."""
        return self.recipe.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileType:
    """A GGUF that is not there yet: llama.cpp's quantiser chooses a format for every tensor."""

    name: str


Place = tuple[str, int]
"""A weight by its name with placeholders, and a layer (0 outside of the stack)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Files that are there: what they hold of every weight, layer by layer.

    ``held`` has bytes and elements of the whole weight, and the dtype of its largest tensor.
    ``beside`` are bytes that belong to no known weight; every rank has them.
    """

    held: Mapping[Place, tuple[int, int, str]]
    beside: int = 0
    name: str = "as stored"


Format = Plain | Packed | Published | FileType | Checkpoint


def named(name: str, wide: DType) -> Format:
    """The format of that name: a scheme, a GGUF file type or a dtype.

    ``wide`` is what is not packed.

    An integer is a scheme with scales: codes alone run nowhere. Unknown names are an InputError.

    >>> from llmcalc.formats.element import dtype
    >>> named("int4", dtype("bfloat16")).name, named("q4_k_m", dtype("bfloat16")).name
    ('w4a16', 'Q4_K_M')
    """
    scheme = find_scheme(name)
    if scheme is not None:
        return Packed(scheme=scheme, packing=scheme.packing, wide=wide)
    known = find_dtype(name)
    if known is not None and known.block <= 4:  # floats of 4 and 6 bits are packed, without scales
        return Plain(wide=known)
    if name.upper() in BASES:
        return FileType(name=name.upper())
    if known is not None:
        raise InputError(
            f"{known.name} is a format of tensors; no file has one alone", hint=f"known: {_known()}"
        )
    close = difflib.get_close_matches(name.lower(), [*_names(), *DTYPES, *ALIASES], 3, 0.7)
    hint = f"close: {', '.join(close)}; " if close else ""
    raise InputError(f"no weight format is called {name!r}", hint=f"{hint}known: {_known()}")


def _names() -> list[str]:
    return [*SCHEMES, *(name.lower() for name in BASES)]


def _known() -> str:
    return f"a dtype, {', '.join(SCHEMES)}, or a GGUF file type: {', '.join(list(BASES)[:8])} ..."


def stored(anatomy: Anatomy, form: Format, tp: int = 1) -> tuple[Stored, ...]:
    """Every tensor of the model as one of ``tp`` ranks stores it, tied ones once.

    A GGUF holds the text model alone: what sees and hears lies in a file of its own.
    """
    if isinstance(form, FileType | Packed | Published):
        anatomy.explained(f"which of them stay wide in {form.name}")
    if isinstance(form, FileType):
        return tuple(_mixed(anatomy, form, tp))
    heads = anatomy.n_kv_heads
    if isinstance(form, Checkpoint):
        own = [w for w in anatomy.weights if w.stored]
        return tuple(piece for w in own for piece in _held(w, form, tp, heads))
    own = [w for w in anatomy.weights if w.stored]
    if isinstance(form, Published):
        return tuple(piece for w in own for piece in _published(w, form, tp, heads))
    return tuple(_one(w, anatomy, form, tp, heads) for w in own)


def _one(
    weight: Weight, anatomy: Anatomy, form: Plain | Packed, tp: int, heads: int | None
) -> Stored:
    """A weight in one dtype, or packed by a scheme where that packs it."""
    here = weight if tp == 1 else replace(weight, shape=cut_shape(weight, tp, heads))
    if isinstance(form, Packed) and form.scheme.applies(weight, anatomy):
        matrices = here.experts * product([*here.shape[:-2]])
        each = form.scheme.n_bytes(here.inputs, here.outputs, form.packing)
        n_bytes, name = here.layers.count * matrices * each, form.scheme.name
    else:
        n_bytes, name = in_dtype(here.params, form.wide), form.wide.name
    return Stored(
        weight=here,
        layers=here.layers,
        form=name,
        elements=here.params,
        n_bytes=n_bytes,
        role=here.role,
    )


def _published(weight: Weight, form: Published, tp: int, heads: int | None) -> Iterable[Stored]:
    """A weight layer by layer, layers of one layout together."""
    here = weight if tp == 1 else replace(weight, shape=cut_shape(weight, tp, heads))
    groups: dict[int, list[int]] = {}
    for layer in weight.layers.indices:
        groups.setdefault(_packed_bytes(weight, here, form, layer), []).append(layer)
    plain = in_dtype(here.per_layer, form.wide)
    for n_bytes, layers in groups.items():
        where = weight.layers
        if len(groups) > 1:
            where = Layers(tuple(layers), Dim(len(layers)))
        each = plain if n_bytes < 0 else Dim(n_bytes)
        yield Stored(
            weight=replace(here, layers=where),
            layers=where,
            form=form.wide.name if n_bytes < 0 else form.name,
            elements=where.count * here.per_layer,
            n_bytes=where.count * each,
            role=here.role,
        )


def _packed_bytes(weight: Weight, here: Weight, form: Published, layer: int) -> int:
    """Bytes of one layer of a packed weight, all experts; -1 where it is stored wide."""
    name = weight.name.replace("{layer}", str(layer))
    every = weight.by_expert and form.recipe.by_expert
    experts = range(int(weight.experts)) if every else (0,)
    total_bytes, wide = 0, 0
    for expert in experts:
        layout = form.recipe.of(weight, name.replace("{expert}", str(expert)))
        if layout is None:
            wide += 1
            continue
        total_bytes += matrix_bytes(layout, here)
    if wide == len(experts):
        return -1
    total_bytes += wide * int(in_dtype(product([*here.shape]), form.wide))
    return total_bytes if every else total_bytes * int(here.experts)


def matrix_bytes(layout: Layout, weight: Weight) -> int:
    """Bytes of one matrix; gate and up that are one tensor here are packed each by itself."""
    inputs, outputs = weight.inputs, weight.outputs
    if weight.op == "lookup":
        inputs, outputs = outputs, inputs
    parts = 2 if weight.role == "mlp.gate_up" and weight.routed else 1
    pieces = layout(inputs, outputs // parts if parts > 1 else outputs)
    return parts * sum(int(piece.n_bytes) for piece in pieces.values())


def in_dtype(elements: Dim, kind: DType) -> Dim:
    """Bytes of so many elements, the last block filled up."""
    if kind.block == 1:
        return elements * kind.size
    return ceil_div(elements, kind.block) * kind.size


def _mixed(anatomy: Anatomy, form: FileType, tp: int) -> Iterable[Stored]:
    heads = anatomy.n_kv_heads
    for piece in mix(anatomy, form.name):
        share = piece.n_bytes
        elements = Dim(piece.elements)
        if tp > 1:
            here = product([*cut_shape(piece.weight, tp, heads)])
            whole = product([*piece.weight.shape])
            elements = Dim(-(-piece.elements * int(here) // int(whole)))
            share = -(-piece.n_bytes * int(here) // int(whole))
        yield Stored(
            weight=piece.weight,
            layers=Layers((piece.layer,), Dim(1)),
            form=piece.form.lower(),
            elements=elements,
            n_bytes=Dim(share),
            role=piece.role,
        )


def _held(weight: Weight, form: Checkpoint, tp: int, heads: int | None) -> Iterable[Stored]:
    """A checkpoint's tensors of a weight; a rank's share is that of its elements."""
    shape = weight.shape if tp == 1 else cut_shape(weight, tp, heads)
    each = weight.experts * product([*shape])
    for layer in weight.layers.indices:
        found = form.held.get((weight.copy_of or weight.name, layer))
        if found is None:
            continue
        n_bytes, elements, kind = found
        share = n_bytes if elements == each else -(-n_bytes * int(each) // max(elements, 1))
        yield Stored(
            weight=weight,
            layers=Layers((layer,), Dim(1)),
            form=kind,
            elements=each,
            n_bytes=Dim(share),
            role=weight.role,
        )


def stored_bytes(anatomy: Anatomy, form: Format, tp: int = 1) -> Dim:
    """Bytes of all weights on the fullest of ``tp`` ranks."""
    found = total(piece.n_bytes for piece in stored(anatomy, form, tp))
    if isinstance(form, Published) and form.recipe.cache_scales:
        return found + _cache_scales(anatomy, form.recipe)
    return found + form.beside if isinstance(form, Checkpoint) and form.beside else found


def _cache_scales(anatomy: Anatomy, recipe: Recipe) -> int:
    """Scales of the cache's keys and values that lie beside the weights."""
    kept = [m for m in anatomy.mixers if m.kind in ("kv", "latent", "shared")]
    each = [int(m.n_kv_heads) if recipe.cache_heads else 1 for m in kept]
    return sum(
        recipe.cache_scales * n * len(m.layers.indices) for n, m in zip(each, kept, strict=True)
    )


def stored_elements(found: Iterable[Stored]) -> int:
    """Elements of some stored tensors."""
    return sum(int(piece.elements) for piece in found)
