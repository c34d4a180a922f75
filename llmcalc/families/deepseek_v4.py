"""DeepSeek-V4: compressed attention and hyper-connections."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Mixer, Parts
from llmcalc.blocks import W123, correction_bias, embed, experts, linear, norm, swiglu, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family
from llmcalc.families.parts.frame import BLOCK

CSA, HCA = "compressed_sparse_attention", "heavily_compressed_attention"


ATTN = f"{BLOCK}.attn"


def layer_kinds(c: Config) -> list[str]:
    """Which layers only slide, which compress by four, which by 128."""
    kinds, ratios = c.get("layer_types"), c.get("compress_ratios")
    if kinds is None and ratios is not None:
        names = {0: "sliding_attention", 4: CSA, 128: HCA}
        if unknown := set(ratios) - set(names):
            raise ConfigError(
                f"deepseek_v4: the compression ratios {sorted(unknown)} are not known (0, 4 and 128"
                " are)"
            )
        kinds = [names[r] for r in ratios]
    if kinds is None:
        kinds = [HCA, HCA, *(CSA if i % 2 else HCA for i in range(c.layers))]
    return list(kinds[: c.layers])


@family("deepseek_v4")
def deepseek_v4(c: Config) -> Parts:
    """DeepSeek-V4's decoder under the reference's published names."""
    d, layers, m = c.d_model, Layers.all(c.n_layers), c.hc_mult
    kinds, first = layer_kinds(c), c.size("num_hash_layers", 0, least=0)
    mlp_kinds = c.kinds("mlp_layer_types") or [
        "hash_moe" if i < first else "moe" for i in range(c.layers)
    ]
    yield from embed("model.embed_tokens", c.vocab, d)
    for name in ("attn", "ffn"):
        if name == "ffn":
            yield from v4_attention(c, layers, kinds)
        rows = (2 + m) * m
        yield tensor(f"{BLOCK}.hc_{name}_fn", (rows, m * d), "matmul", "residual", layers)
        yield tensor(f"{BLOCK}.hc_{name}_base", (rows,), "add", "residual", layers)
        yield tensor(f"{BLOCK}.hc_{name}_scale", (3,), "scale", "residual", layers)
        yield from norm(f"{BLOCK}.{name}_norm", d, layers)
    yield from v4_experts(c, layers, mlp_kinds)
    yield tensor("model.hc_head.hc_fn", (m, m * d), "matmul", "residual")
    yield tensor("model.hc_head.hc_base", (m,), "add", "residual")
    yield tensor("model.hc_head.hc_scale", (1,), "scale", "residual")
    yield from norm("model.norm", d)
    to = "model.embed_tokens.weight" if c.tied else None
    yield tensor("head.weight", (c.vocab, d), "matmul", "head", tied_to=to)


def v4_attention(c: Config, layers: Layers, kinds: list[str]) -> Parts:
    """Low-rank queries and output, one key that is also the value, and a compressor where the layer
    has one.
    """
    d, heads, d_h, rank = c.d_model, c.n_heads, c.head_dim, c.q_lora_rank
    groups, low = c.o_groups, c.o_lora_rank
    yield from linear(f"{ATTN}.wq_a", rank, d, "attn.q_a", layers)
    yield from norm(f"{ATTN}.q_norm", rank, layers, role="attn.q_norm")
    yield from linear(f"{ATTN}.wq_b", heads * d_h, rank, "attn.q_b", layers)
    yield from linear(f"{ATTN}.wkv", d_h, d, "attn.kv", layers)
    yield from norm(f"{ATTN}.norm", d_h, layers, role="attn.k_norm")
    yield tensor(f"{ATTN}.attn_sink", (heads,), "add", "attn.sinks", layers)
    rates = c.get("compress_rates") or {}
    for kind, factor, key, default in (
        (CSA, 2, "compress_rate_csa", 4),
        (HCA, 1, "compress_rate_hca", 128),
    ):
        members = [i for i, k in enumerate(kinds) if k == kind]
        members = [i for i, k in enumerate(kinds) if k == kind]
        group = layers.only("n_csa_layers" if kind == CSA else "n_hca_layers", members)
        rate = Dim(
            c.raw.get(key) or rates.get(kind) or default, "csa_rate" if kind == CSA else "hca_rate"
        )
        if group.indices:
            yield from compressor(f"{ATTN}.compressor", d, factor * d_h, d_h, rate, group)
        if group.indices and kind == CSA:
            p, width = f"{ATTN}.indexer", c.index_head_dim
            yield from compressor(f"{p}.compressor", d, 2 * width, width, rate, group)
            yield from linear(f"{p}.wq_b", c.index_n_heads * width, rank, "attn.index_q", group)
            yield from linear(f"{p}.weights_proj", c.index_n_heads, d, "attn.index_weights", group)
        if group.indices:
            yield v4_mixer(c, group, rate, factor)
    sliding = layers.where("n_sliding_layers", lambda i: kinds[i] == "sliding_attention")
    if sliding.indices:
        yield replace(v4_mixer(c, sliding, None, 0), values=d_h)
    yield from linear(f"{ATTN}.wo_a", groups * low, heads * d_h // groups, "attn.o_a", layers)
    yield from linear(f"{ATTN}.wo_b", d, groups * low, "attn.o", layers)


def v4_mixer(c: Config, layers: Layers, rate: Dim | None, factor: int) -> Mixer:
    """A window of single keys, and what the compressor keeps of everything before it."""
    d_h = c.head_dim
    return Mixer(
        kind="compressed" if rate else "kv",
        layers=layers,
        n_heads=c.n_heads,
        n_kv_heads=Dim(1, "n_kv_heads"),
        d_qk=d_h,
        d_v=d_h,
        keys=d_h,
        window=c.window,
        compress_rate=rate,
        index_keys=c.index_head_dim if factor == 2 else Dim(0),
    )


def compressor(p: str, d: Dim, wide: Dim, d_h: Dim, rate: Dim, layers: Layers) -> Parts:
    """Several tokens into one: values, gates, positions inside the group, a norm."""
    for name in ("wkv", "wgate"):
        yield from linear(f"{p}.{name}", wide, d, "attn.compress", layers)
    yield tensor(f"{p}.ape", (rate, wide), "add", "attn.compress", layers)
    yield from norm(f"{p}.norm", d_h, layers, role="attn.compress")


def v4_experts(c: Config, layers: Layers, kinds: list[str]) -> Parts:
    """Experts in every layer, chosen by the token's id in the first ones; one shared expert."""
    p, d, n, k = f"{BLOCK}.ffn", c.d_model, c.n_experts, c.n_active_experts
    width = c.size("d_ff_expert", None, "intermediate_size", "moe_intermediate_size")
    hashed = layers.where("n_hash_layers", lambda i: kinds[i] == "hash_moe")
    routed = layers.where("n_routed_layers", lambda i: kinds[i] != "hash_moe")
    yield from linear(f"{p}.gate", n, d, "router", layers)
    yield tensor(f"{p}.gate.tid2eid", (c.vocab, k), "lookup", "router", hashed, buffer=True)
    yield from correction_bias(f"{p}.gate.bias", n, routed)
    yield from experts(swiglu(f"{p}.experts.{{expert}}", d, width, layers, names=W123), n, k)
    yield from swiglu(f"{p}.shared_experts", d, width, layers, c.flag("mlp_bias"), W123)
