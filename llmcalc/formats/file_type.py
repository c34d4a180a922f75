"""What a GGUF file type makes of every tensor: llama.cpp's quantiser chooses a format per tensor,
not per model.

Source: llama.cpp, ``llama_tensor_get_type`` (src/llama-quant.cpp), as of 2026, without an
importance matrix; checked against ``llama-quantize --dry-run``. A published size is therefore never
parameters times bits over eight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy, Weight
from llmcalc.dims import product
from llmcalc.errors import InputError
from llmcalc.formats.element import dtype, find_dtype

_SAME = (
    *(
        "F32",
        "F16",
        "BF16",
        "Q1_0",
        "Q2_0",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
        "TQ1_0",
        "TQ2_0",
    ),
    *("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ4_XS", "IQ4_NL", "Q6_K"),
)
BASES: Mapping[str, str] = {
    **{name: name for name in _SAME},
    **dict.fromkeys(("Q4_K_S", "Q4_K_M"), "Q4_K"),
    **dict.fromkeys(("Q5_K_S", "Q5_K_M"), "Q5_K"),
    **dict.fromkeys(("Q3_K_S", "Q3_K_M", "Q3_K_L"), "Q3_K"),
    **dict.fromkeys(("Q2_K", "Q2_K_S"), "Q2_K"),
    **dict.fromkeys(("IQ3_XS", "IQ3_S", "IQ3_M"), "IQ3_S"),
    "IQ2_S": "IQ2_XS",
    "IQ2_M": "IQ2_S",
    "MXFP4_MOE": "Q8_0",
}
"""File type to the format that a matrix has unless a rule says otherwise."""

_ONE_OR_TWO = ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_FALLBACK = {
    **dict.fromkeys(
        ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_XS"), "IQ4_NL"
    ),
    **dict.fromkeys(("Q2_0", "Q2_K", "Q3_K", "TQ1_0", "TQ2_0"), "Q4_0"),
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
}
"""What a format becomes where it does not divide a row."""


@dataclass(frozen=True, slots=True)
class Typed:
    """One tensor of the file: the weight it comes from, its role, layer, format, elements and
    bytes.
    """

    weight: Weight
    role: str
    layer: int
    form: str
    elements: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Model:
    """What the rules ask of a model."""

    layers: int
    experts: int
    gqa: int
    falcon: bool
    seventy: bool
    tied: bool
    values: list[int]
    """The layers that have a tensor which counts as attention's values, in order."""
    downs: list[tuple[int, bool]]
    """Layer and whether it is a shared expert's or the only one, of every down projection, in the
    file's order.
    """


@dataclass(frozen=True, slots=True)
class _Tensor:
    """One tensor as the file has it: role, elements, the width of a row, whether it
    holds experts.
    """

    role: str
    elements: int
    row: int
    experts: bool = False


def mix(anatomy: Anatomy, name: str) -> list[Typed]:
    """Every tensor of a model's file of that type, text only.

    A type or a layer that is not known is an InputError.
    """
    kind = name.upper()
    if kind not in BASES:
        raise InputError(f"no GGUF file type is called {name!r}", hint=f"known: {', '.join(BASES)}")
    model = _facts(anatomy)
    return [
        _typed(w, tensor, layer, kind, model)
        for w in anatomy.weights
        if not w.tied_to and w.text
        for layer in w.layers.indices
        for tensor in _tensors(w, anatomy)
    ]


def file_type(named: str | None) -> str | None:
    """The GGUF file type of that name; a float's name is the float, and not a file of it."""
    known = find_dtype(named) if named is not None else None
    plain = known is not None and known.block == 1
    return named.upper() if named is not None and named.upper() in BASES and not plain else None


def _facts(anatomy: Anatomy) -> _Model:
    own = [w for w in anatomy.weights if w.text]
    layers = 1 + max((i for m in anatomy.mixers for i in m.layers.indices), default=0)
    first = next((m for m in anatomy.mixers if m.n_heads and m.n_kv_heads), None)
    gqa = int(first.n_heads) // int(first.n_kv_heads) if first else 1
    return _Model(
        layers=layers,
        experts=max((int(w.experts) for w in own), default=1),
        gqa=gqa,
        falcon=anatomy.family == "falcon",
        seventy=layers == 80 and gqa > 1 and anatomy.family in ("llama", "qwen2"),
        tied=not any(w.role == "head" and not w.tied_to for w in own),
        values=sorted({i for w in own if _has_values(w) for i in w.layers.indices}),
        downs=sorted({(i, not w.routed) for w in own if _is_down(w) for i in w.layers.indices}),
    )


_ROLES = ("embed", "norm", "attn", "mlp", "ssm", "router", "head")


def _has_values(w: Weight) -> bool:
    """Whether it is what the quantiser treats as attention's values.

    Attn_qkv is, a linear layer's one too.
    """
    return w.op == "matmul" and (w.role in ("attn.v", "attn.qkv") or ".in_proj_qkv" in w.name)


def _is_down(w: Weight) -> bool:
    return w.op == "matmul" and w.role == "mlp.down"


def _tensors(w: Weight, anatomy: Anatomy) -> Iterator[_Tensor]:
    """What a file holds of a weight: itself, or two where the converter takes it apart."""
    if w.role.split(".")[0] not in _ROLES or "index" in w.role or "compress" in w.role:
        raise InputError(f"which format llama.cpp gives {w.name} ({w.role}) is not described here")
    elements = int(product(list(w.shape))) * int(w.experts)
    row = int(w.outputs if w.op == "lookup" else w.inputs)  # a row of a GGUF's tensor
    rows = elements // row
    if w.role == "attn.kv_b":  # keys transposed, so that they absorb queries, and values
        mixer = next(m for m in anatomy.mixers if m.kind == "latent")
        n_heads, values = int(mixer.n_heads), int(mixer.d_v)
        keys = rows // n_heads - values
        yield _Tensor("attn.k_b", elements * keys // (keys + values), keys, experts=True)
        yield _Tensor("attn.v_b", elements * values // (keys + values), row, experts=True)
    elif ".in_proj_qkvz" in w.name:  # the gate z apart
        conv = next(
            v
            for v in anatomy.weights
            if v.role == "ssm.conv" and v.layers.indices[0] == w.layers.indices[0]
        )
        yield _Tensor("attn.qkv", int(conv.shape[0]) * row, row)
        yield _Tensor("attn.gate", elements - int(conv.shape[0]) * row, row)
    elif w.role == "mlp.gate_up" and w.stacked:
        yield from [_Tensor("mlp.gate", elements // 2, row, experts=True)] * 2
    else:
        yield _Tensor(
            "attn.qkv" if _has_values(w) and w.role != "attn.v" else w.role,
            elements,
            row,
            w.routed,
        )


def _typed(w: Weight, tensor: _Tensor, layer: int, kind: str, model: _Model) -> Typed:
    kept = (
        w.op not in ("matmul", "lookup")
        or len(w.shape) < 2
        or w.role in ("router", "embed.position")
    )
    form = "F32" if kept else _fitting(_form(tensor, kind, model, layer), tensor.row)
    return Typed(
        weight=w,
        role=tensor.role,
        layer=layer,
        form=form,
        elements=tensor.elements,
        n_bytes=dtype(form).bytes_for(tensor.elements),
    )


def _fitting(form: str, row: int) -> str:
    """The format, or the one it gives way to where a row is no whole number of its blocks."""
    known = dtype(form)
    if row % known.block == 0:
        return form
    if form == "Q1_0":
        raise InputError(
            f"rows of {row} do not divide into blocks of {form}, and the quantiser has nothing to"
            " fall back on"
        )
    other = _FALLBACK.get(form, "F16")
    return other if row % dtype(other).block == 0 else "F16"


def _more(i: int, n: int) -> bool:
    """The layers that get more bits: the first and last eighth, and every third between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def _form(tensor: _Tensor, kind: str, model: _Model, layer: int) -> str:
    base, role = BASES[kind], tensor.role
    if kind in ("F32", "F16", "BF16"):
        return kind
    if role == "head" or (role == "embed.token" and model.tied):
        return _head(kind, base, model, tensor.row)
    if kind == "MXFP4_MOE":
        return "MXFP4" if tensor.experts else "Q8_0"
    if role == "embed.token":
        return _embedding(kind, base)
    if role in ("attn.v", "attn.qkv"):
        return _values(kind, base, model, (model.values.index(layer), len(model.values)))
    if role in ("mlp.gate", "mlp.up", "mlp.gate_up"):
        n = model.layers
        return "IQ3_XXS" if kind == "IQ3_XS" and n // 8 <= layer < 7 * n // 8 else base
    if (
        role == "mlp.down" and kind in _ONE_OR_TWO
    ):  # here down projections are counted, and not layers
        early = model.downs.index((layer, not tensor.experts)) < model.layers // 8
        return base if not early else "IQ3_S" if kind in ("IQ2_S", "IQ2_M") else "Q2_K"
    rule = {"attn.k": _keys, "attn.q": _queries, "attn.o": _output, "mlp.down": _down}.get(role)
    return rule(kind, base, model, (layer, model.layers)) if rule else base


def _head(kind: str, base: str, model: _Model, row: int) -> str:
    if kind == "MXFP4_MOE" or base == "Q8_0" or model.falcon or row % dtype(base).block:
        return "Q8_0"
    return "Q5_K" if kind in (*_ONE_OR_TWO, "IQ3_XXS") else "Q6_K"


def _embedding(kind: str, base: str) -> str:
    if kind in ("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"):
        return "Q2_K"
    if kind in ("IQ2_S", "IQ2_M", "IQ3_XXS"):
        return "IQ3_S"
    return "Q4_K" if kind in ("TQ1_0", "TQ2_0", "Q2_0") else base


def _values(kind: str, base: str, m: _Model, place: tuple[int, int]) -> str:
    found = _plain_values(kind, base, m, place)
    if kind in _ONE_OR_TWO:
        return found
    if m.experts == 8:
        return "Q8_0"
    return "Q5_K" if m.seventy and found in ("Q3_K", "Q4_K") else found


def _plain_values(kind: str, base: str, m: _Model, place: tuple[int, int]) -> str:
    i, n = place
    wide = m.gqa >= 4
    if kind in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if _more(i, n) else base
    if kind in _ONE_OR_TWO:
        if wide or m.experts >= 4:
            return "Q4_K"
        return "IQ3_S" if kind in ("IQ2_S", "IQ2_M") else "Q2_K"
    rules = {
        "Q4_K_S": "Q5_K" if i < 4 else base,
        "Q3_K_M": "Q5_K" if i < 2 else "Q4_K",
        "Q3_K_L": "Q5_K",
        "Q2_K": "Q4_K" if wide else "Q3_K",
        "Q2_K_S": "Q4_K" if wide else base,
        "IQ3_XXS": "Q4_K" if wide else "IQ3_S",
        "IQ3_XS": "Q4_K" if wide else base,
        "IQ3_S": "Q4_K" if wide else base,
        "IQ3_M": "Q4_K",
        "IQ4_NL": "Q5_K" if wide else base,
        "IQ4_XS": "Q5_K" if wide else base,
    }
    return rules.get(kind, base)


def _keys(kind: str, base: str, m: _Model, place: tuple[int, int]) -> str:
    if m.experts == 8:
        return "Q4_K" if kind in _ONE_OR_TWO else "Q8_0"
    return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(kind, base)


def _queries(kind: str, base: str, m: _Model, place: tuple[int, int]) -> str:
    return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(kind, base)


def _output(kind: str, base: str, m: _Model, place: tuple[int, int]) -> str:
    if m.experts == 8:
        five = (
            "Q2_K",
            "Q3_K_S",
            "Q3_K_M",
            "Q4_K_S",
            "Q4_K_M",
            "IQ3_XXS",
            "IQ3_XS",
            "IQ3_S",
            "IQ3_M",
            "IQ4_NL",
            "IQ4_XS",
        )
        return "Q5_K" if kind in (*five, *_ONE_OR_TWO) else base
    if m.falcon:
        return base
    rules = {
        "Q2_K": "Q3_K",
        "IQ3_XXS": "IQ3_S",
        "Q3_K_M": "Q4_K",
        "Q3_K_L": "Q5_K",
        "IQ3_M": "Q4_K",
        "IQ1_S": "IQ2_XXS",
        "IQ1_M": "IQ2_XXS",
        "IQ2_S": "IQ3_S",
        "IQ2_M": "IQ3_S",
    }
    return rules.get(kind, base)


def _down(kind: str, base: str, m: _Model, place: tuple[int, int]) -> str:
    i, n = place
    early = i < n // 8
    if kind in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if _more(i, n) else base
    rules = {
        "Q4_K_S": "Q5_K" if early else base,
        "Q3_K_M": "Q5_K" if i < n // 16 else "Q4_K",
        "Q3_K_L": "Q5_K",
        "Q2_K": "Q3_K",
        "Q2_K_S": "Q4_K" if early else base,
        "IQ3_XXS": "Q4_K" if early else "Q3_K",
        "IQ3_M": "Q4_K" if early or (m.experts == 8 and _more(i, n)) else base,
        "IQ4_NL": "Q5_K" if early else base,
        "IQ4_XS": "Q5_K" if early else base,
    }
    return rules.get(kind, base)
