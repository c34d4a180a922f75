"""The blocks that families are made of: each yields its weights, and its mixer, in forward order.

Names are arguments, because checkpoints differ in them; structure is not: a block that would need
another flag is another block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from llmcalc.anatomy import ONCE, Layers, Mixer, Op, Parts, State, Weight
from llmcalc.config import Config
from llmcalc.dims import Dim, dim

Weights = Iterator[Weight]
Windowed = Callable[[Layers, "Dim | None"], Parts]
SEPARATE = ("q_proj", "k_proj", "v_proj", "o_proj")
GATED = ("gate_proj", "up_proj", "down_proj")
W123 = ("w1", "w3", "w2")


def tensor(
    name: str, shape: Iterable[int], op: Op, role: str, layers: Layers = ONCE, **more: object
) -> Weight:
    """One weight, its shape given as any ints."""
    return Weight(name, tuple(dim(s) for s in shape), op, role, layers, **more)  # type: ignore[arg-type]


def linear(
    name: str, out: int, inn: int, role: str, layers: Layers = ONCE, bias: bool = False
) -> Weights:
    """A matrix (out, in), and its bias."""
    yield tensor(f"{name}.weight", (out, inn), "matmul", role, layers)
    if bias:
        yield tensor(f"{name}.bias", (out,), "add", role, layers)


def conv1d_gpt2(name: str, inn: int, out: int, role: str, layers: Layers = ONCE) -> Weights:
    """GPT-2's Conv1D: a matrix stored (in, out), and its bias."""
    yield tensor(f"{name}.weight", (inn, out), "matmul", role, layers, transposed=True)
    yield tensor(f"{name}.bias", (out,), "add", role, layers)


def norm(
    name: str, width: int, layers: Layers = ONCE, bias: bool = False, role: str = "norm"
) -> Weights:
    """A normalisation's scale: RMSNorm, or LayerNorm where it has a bias too."""
    yield tensor(f"{name}.weight", (width,), "scale", role, layers)
    if bias:
        yield tensor(f"{name}.bias", (width,), "add", role, layers)


def embed(
    name: str, rows: int, width: int, role: str = "embed.token", layers: Layers = ONCE
) -> Weights:
    """A lookup table."""
    yield tensor(f"{name}.weight", (rows, width), "lookup", role, layers)


def lm_head(
    name: str, vocab: int, width: int, tied_to: str | None = None, bias: bool = False
) -> Weights:
    """The projection to the vocabulary.

    Tied, it is the embedding's weight (give that one's full name).
    """
    yield tensor(f"{name}.weight", (vocab, width), "matmul", "head", tied_to=tied_to)
    if bias:
        yield tensor(f"{name}.bias", (vocab,), "add", "head")


def tie(c: Config, to: str = "model.embed_tokens.weight") -> str | None:
    """What the head is tied to, by the config's flag."""
    return to if c.tied else None


def attention(
    layers: Layers,
    n_heads: int,
    n_kv: int,
    d_qk: int,
    d_v: int,
    window: Dim | None = None,
    chunked: bool = False,
) -> Mixer:
    """The mixer of ordinary attention: keys and values of every token, or of those in
    the window.
    """
    return Mixer(
        kind="kv",
        layers=layers,
        n_heads=dim(n_heads),
        n_kv_heads=dim(n_kv),
        d_qk=dim(d_qk),
        d_v=dim(d_v),
        keys=dim(n_kv) * d_qk,
        values=dim(n_kv) * d_v,
        window=window,
        chunked=chunked,
    )


def qkv(
    p: str,
    c: Config,
    layers: Layers,
    bias: bool = False,
    names: tuple[str, str, str, str] = SEPARATE,
) -> Weights:
    """The three projections into grouped-query attention.

    N_kv_heads = n_heads is MHA, n_kv_heads = 1 MQA.
    """
    kv = c.n_kv_heads * c.head_dim
    yield from linear(f"{p}.{names[0]}", c.n_heads * c.head_dim, c.d_model, "attn.q", layers, bias)
    yield from linear(f"{p}.{names[1]}", kv, c.d_model, "attn.k", layers, bias)
    yield from linear(f"{p}.{names[2]}", kv, c.d_model, "attn.v", layers, bias)


def qk_norm(
    p: str,
    c: Config,
    layers: Layers,
    *,
    per_head: bool = True,
    names: tuple[str, str] = ("q_norm", "k_norm"),
) -> Weights:
    """Norms on queries and keys: over one head, shared by all of them, or over all heads
    at once.
    """
    q, k = (
        (c.head_dim, c.head_dim)
        if per_head
        else (c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim)
    )
    yield from norm(f"{p}.{names[0]}", q, layers, role="attn.q_norm")
    yield from norm(f"{p}.{names[1]}", k, layers, role="attn.k_norm")


def mix(c: Config, layers: Layers, window: Dim | None = None) -> Mixer:
    """The mixer of grouped-query attention with the config's heads."""
    return attention(layers, c.n_heads, c.n_kv_heads, c.head_dim, c.head_dim, window)


def gqa(
    p: str,
    c: Config,
    layers: Layers,
    window: Dim | None = None,
    bias: bool = False,
    o_bias: bool | None = None,
) -> Parts:
    """Grouped-query attention.

    ``bias`` is that of q, k and v, and of o where ``o_bias`` does not say otherwise.
    """
    yield from qkv(p, c, layers, bias)
    yield mix(c, layers, window)
    o_bias = bias if o_bias is None else o_bias
    yield from linear(f"{p}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, o_bias)


def by_window(c: Config, layers: Layers, sliding: frozenset[int], block: Windowed) -> Parts:
    """A block once for the layers that see a window and once for those that see everything."""
    near, far = layers.split("sliding", lambda i: i in sliding)
    if near.indices:
        yield from block(near, c.window)
    if far.indices:
        yield from block(
            replace(far, count=Dim(far.count, "n_full_layers")) if near.indices else far, None
        )


def gqa_normed(
    p: str,
    c: Config,
    layers: Layers,
    window: Dim | None = None,
    bias: bool = False,
    per_head: bool = True,
) -> Parts:
    """Grouped-query attention with norms on queries and keys."""
    yield from qkv(p, c, layers, bias)
    yield from qk_norm(p, c, layers, per_head=per_head)
    yield mix(c, layers, window)
    yield from linear(f"{p}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias)


def mla(
    p: str,
    c: Config,
    layers: Layers,
    window: Dim | None = None,
    bias: bool = False,
    o: str = "o_proj",
) -> Parts:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): a token keeps one latent and one
    rotary key.
    """
    d_qk = c.qk_nope_head_dim + c.qk_rope_head_dim
    q_rank, rank = c.optional("q_lora_rank"), c.kv_lora_rank
    if q_rank is None:
        yield from linear(f"{p}.q_proj", c.n_heads * d_qk, c.d_model, "attn.q", layers)
    else:
        yield from linear(f"{p}.q_a_proj", q_rank, c.d_model, "attn.q_a", layers, bias)
        yield from norm(f"{p}.q_a_layernorm", q_rank, layers, role="attn.q_a_norm")
        yield from linear(f"{p}.q_b_proj", c.n_heads * d_qk, q_rank, "attn.q_b", layers)
    latent = rank + c.qk_rope_head_dim
    yield from linear(f"{p}.kv_a_proj_with_mqa", latent, c.d_model, "attn.kv_a", layers, bias)
    yield from norm(f"{p}.kv_a_layernorm", rank, layers, role="attn.kv_a_norm")
    expanded = c.n_heads * (c.qk_nope_head_dim + c.v_head_dim)
    yield from linear(f"{p}.kv_b_proj", expanded, rank, "attn.kv_b", layers)
    yield latent_mixer(c, layers, window)
    yield from linear(f"{p}.{o}", c.d_model, c.n_heads * c.v_head_dim, "attn.o", layers, bias)


def latent_mixer(
    c: Config, layers: Layers, window: Dim | None = None, index_keys: Dim | None = None
) -> Mixer:
    """What latent attention keeps: the latent as "keys", the rotary part as "values", as the
    reference stores them.
    """
    d_qk = c.qk_nope_head_dim + c.qk_rope_head_dim
    return Mixer(
        kind="latent",
        layers=layers,
        n_heads=c.n_heads,
        n_kv_heads=c.n_heads,
        d_qk=d_qk,
        d_v=c.v_head_dim,
        keys=c.kv_lora_rank,
        values=c.qk_rope_head_dim,
        index_keys=index_keys or Dim(0),
        window=window,
    )


def swiglu(
    p: str,
    d: int,
    d_ff: int,
    layers: Layers,
    bias: bool = False,
    names: tuple[str, str, str] = GATED,
    of: str = "mlp",
) -> Weights:
    """A gated MLP: gate and up side by side, multiplied, then down.

    ``of`` begins the roles: ``vision`` in a tower.
    """
    yield from linear(f"{p}.{names[0]}", d_ff, d, f"{of}.gate", layers, bias)
    yield from linear(f"{p}.{names[1]}", d_ff, d, f"{of}.up", layers, bias)
    yield from linear(f"{p}.{names[2]}", d, d_ff, f"{of}.down", layers, bias)


def fused_swiglu(p: str, d: int, d_ff: int, layers: Layers, bias: bool = False) -> Weights:
    """A gated MLP with gate and up in one matrix."""
    yield from linear(f"{p}.gate_up_proj", 2 * dim(d_ff), d, "mlp.gate_up", layers, bias)
    yield from linear(f"{p}.down_proj", d, d_ff, "mlp.down", layers, bias)


def mlp(
    p: str, d: int, d_ff: int, layers: Layers, names: tuple[str, str], bias: bool = True
) -> Weights:
    """The two-matrix MLP: up, activation, down."""
    yield from linear(f"{p}{names[0]}", d_ff, d, "mlp.up", layers, bias)
    yield from linear(f"{p}{names[1]}", d, d_ff, "mlp.down", layers, bias)


def experts(parts: Weights, count: Dim, active: Dim) -> Weights:
    """Any block as one of ``count`` experts of which a token passes through ``active``."""
    for part in parts:
        yield replace(part, experts=count, active=active)


def stacked(parts: Weights, count: Dim, active: Dim) -> Weights:
    """Experts that the file stores as one tensor, expert first."""
    for part in parts:
        yield replace(part, experts=count, active=active, stacked=True)


def correction_bias(name: str, n: int, layers: Layers) -> Weights:
    """The router's load-balancing bias: in the file, a buffer, not a parameter."""
    yield tensor(name, (n,), "add", "router", layers, buffer=True)


def state_mixer(layers: Layers, *states: State, n_heads: int = 0) -> Mixer:
    """A recurrent mixer: what it keeps per sequence, whatever the length."""
    return Mixer("state", layers, dim(n_heads), states=states)
