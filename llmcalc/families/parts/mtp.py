"""Multi-token prediction: one more layer behind the last, whose input is the stream beside the next
token's embedding (DeepSeek-V3, arXiv 2412.19437, section 2.2).

Such a module is a layer of the model's own kind, a matrix 2d to d before it and three norms;
DeepSeek's files hold copies of the embedding and the head too. That is what published totals beyond
the model's own parameters come to, to the parameter: 243,290,624 of Qwen3.5-9B, 210,790,400 of
MiMo-7B, 9,952,939,776 of GLM-5.2 with its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from llmcalc.anatomy import Anatomy, Layers, Part, Weight
from llmcalc.config import Config
from llmcalc.dims import Dim

KEYS = (
    "num_nextn_predict_layers",
    "mtp_num_hidden_layers",
    "mtp_num_layers",
    "num_mtp_modules",
    "num_assistant_layers",
    "n_predict_layers",
)
"""Under which keys configs say how many modules there are."""


@dataclass(frozen=True, slots=True)
class Style:
    """How a lineage's files hold the module.

    ``layer`` is its layer's name, ``joint`` the matrix, ``norms`` the three norms; ``copies`` are
    tables of V x d; ``numbered``: its layers count on from the model's own.
    """

    layer: str
    joint: str
    norms: tuple[str, str, str]
    copies: tuple[str, ...] = ()
    numbered: bool = False


def _numbered(layer: str, *copies: str) -> Style:
    """As DeepSeek names it: a layer behind the last one."""
    norms = (f"{layer}.enorm", f"{layer}.hnorm", f"{layer}.shared_head.norm")
    return Style(
        layer, f"{layer}.eh_proj", norms, tuple(f"{layer}.{c}" for c in copies), numbered=True
    )


_NEXTN = _numbered("model.layers.{layer}")
_NEXTN_COPIES = _numbered("model.layers.{layer}", "embed_tokens", "shared_head.head")
_OWN = Style(
    "mtp.layers.{layer}",
    "mtp.fc",
    ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm"),
)
_MIMO = Style(
    "model.mtp_layers.{layer}",
    "model.mtp_layers.{layer}.input_proj",
    (
        "model.mtp_layers.{layer}.token_layernorm",
        "model.mtp_layers.{layer}.hidden_layernorm",
        "model.mtp_layers.{layer}.final_layernorm",
    ),
)
STYLES = {
    "deepseek_v3": _NEXTN_COPIES,
    "deepseek_v32": _NEXTN_COPIES,
    "glm4_moe": _NEXTN_COPIES,
    "glm_moe_dsa": _NEXTN,
    "bailing_hybrid": _NEXTN,
    "qwen3_next": _OWN,
    "qwen3_5": _OWN,
    "qwen3_5_moe": _OWN,
    "exaone4_5": _OWN,
    "mimo": _MIMO,
}


def wanted(c: Config) -> int:
    """How many modules the config speaks of, its own or its language model's."""
    places = [c.raw, *(v for v in c.raw.values() if isinstance(v, dict))]
    found = (place.get(key) for place in places for key in KEYS)
    return next((n for n in found if type(n) is int and 0 < n < 100), 0)


def said(c: Config, parts: tuple[Part, ...]) -> str:
    """What the module holds, in one line."""
    n = wanted(c)
    what = f"{n} {'module' if n == 1 else 'modules'} of multi-token prediction beside the model"
    if not parts:
        return f"{what}, not in the total: what {c.family}'s hold is not known from the config"
    total = sum(int(w.params) for w in parts if isinstance(w, Weight) and w.counted)
    copies = sum(int(w.params) for w in parts if isinstance(w, Weight) and w.role == "mtp.copy")
    held = "a layer, a matrix 2d to d, three norms"
    held += f", copies of embedding and head ({copies:,})" if copies else ""
    return f"{what}, not in the total: {total:,} parameters ({held}); --with-mtp counts them"


def module(c: Config, whole: Anatomy) -> tuple[Part, ...]:
    """The parts of the modules, in forward order; nothing where a family's module is not known."""
    style, n = STYLES.get(c.family), wanted(c)
    return tuple(_parts(whole, style, n)) if style is not None and n else ()


def _parts(whole: Anatomy, style: Style, n: int) -> Iterator[Part]:
    d, v = _width(whole), Dim(whole.vocab, "vocab")
    first = whole.n_layers if style.numbered else 0
    where = Layers(tuple(range(first, first + n)), Dim(n, "n_mtp_layers"))

    def put(name: str, shape: tuple[Dim, ...], role: str) -> Weight:
        layers = where if "{layer}" in name else Layers((0,), Dim(1))
        op = "matmul" if role == "mtp.in" else "lookup" if role == "mtp.copy" else "scale"
        return Weight(f"{name}.weight", shape, op, role, layers)  # type: ignore[arg-type]

    for name in style.norms[:2]:
        yield put(name, (d,), "norm")
    yield put(style.joint, (d, 2 * d), "mtp.in")
    yield from _layer(whole, style, where)
    yield put(style.norms[2], (d,), "norm")
    for name in style.copies:
        yield put(name, (v, d), "mtp.copy")


def _layer(whole: Anatomy, style: Style, where: Layers) -> Iterator[Part]:
    """The layer that the module repeats: the last that has everything a layer of the model may
    have, an indexer and attention over all tokens.
    """
    index = _repeated(whole)
    for part in whole.parts:
        if index not in part.layers.indices:
            continue
        if not isinstance(part, Weight):
            yield replace(part, layers=where)
        elif part.in_stack and part.text:
            name = style.layer + part.name.partition("{layer}")[2]
            yield replace(part, name=name, layers=where, also=None)


def _repeated(whole: Anatomy) -> int:
    tests: list[Callable[[Part], bool]] = [
        lambda p: isinstance(p, Weight) and "index" in p.role,
        lambda p: not isinstance(p, Weight) and p.kind in ("kv", "latent") and p.window is None,
    ]
    for holds in tests:
        found = [max(p.layers.indices) for p in whole.parts if holds(p)]
        if found:
            return max(found)
    return whole.n_layers - 1


def _width(whole: Anatomy) -> Dim:
    table = next(w for w in whole.text if w.role == "embed.token")
    return table.outputs
