"""Google: Gemma 3n and 4, which share caches and add inputs to every layer."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Parts, Weight, rename
from llmcalc.blocks import attention, embed, linear, lm_head, norm, stacked, swiglu, tensor, tie
from llmcalc.config import KEY, Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family, inner
from llmcalc.families.parts.frame import ATTENTION, BLOCK, MLP
from llmcalc.families.parts.towers import named
from llmcalc.families.parts.wrapper import text_of

_NORMS = ("post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")


def norms(c: Config, layers: Layers, names: tuple[str, ...]) -> Parts:
    """Several of a layer's norms."""
    for name in names:
        yield from norm(f"{BLOCK}.{name}", c.d_model, layers)


def per_layer_inputs(c: Config, layers: Layers, width: Dim) -> Parts:
    """What a layer does with its own embedding of the token."""
    yield from linear(f"{BLOCK}.per_layer_input_gate", width, c.d_model, "ple.gate", layers)
    yield from linear(f"{BLOCK}.per_layer_projection", c.d_model, width, "ple.up", layers)
    yield from norm(f"{BLOCK}.post_per_layer_input_norm", c.d_model, layers)


def per_layer_tables(c: Config, width: Dim) -> Parts:
    """The embeddings of all layers in one table, and their mix with the token's own."""
    yield from embed(
        "model.embed_tokens_per_layer",
        c.vocab_size_per_layer_input,
        c.n_layers * width,
        "embed.layer",
    )
    yield from linear("model.per_layer_model_projection", c.n_layers * width, c.d_model, "ple.in")
    yield from norm("model.per_layer_projection_norm", width)


@family("gemma3n_text")
def gemma3n_text(c: Config) -> Parts:
    """Gemma 3n's language model: four residual streams, low-rank side paths, shared caches at the
    end.
    """
    layers, a, low, width = (
        Layers.all(c.n_layers),
        c.altup_num_inputs,
        c.laurel_rank,
        c.hidden_size_per_layer_input,
    )
    d = c.d_model
    yield from embed("model.embed_tokens", c.vocab, d)
    yield from per_layer_tables(c, width)
    yield from named_list("model.altup_projections", int(a) - 1, d)
    yield from norms(c, layers, ("input_layernorm",))
    yield from gemma3n_attention(c, layers)
    yield tensor(f"{BLOCK}.altup.correct_output_scale", (d,), "scale", "altup", layers)
    for name, shape in (
        ("correction_coefs", (a, a)),
        ("prediction_coefs", (a * a, a)),
        ("modality_router", (a, d)),
    ):
        yield from linear(f"{BLOCK}.altup.{name}", *shape, "altup", layers)
    yield from norm(f"{BLOCK}.altup.router_norm", d, layers)
    yield from linear(f"{BLOCK}.laurel.linear_left", low, d, "laurel", layers)
    yield from linear(f"{BLOCK}.laurel.linear_right", d, low, "laurel", layers)
    yield from norm(f"{BLOCK}.laurel.post_laurel_norm", d, layers)
    yield from norms(c, layers, _NORMS)
    given = c.get("intermediate_size")
    widths = given if isinstance(given, list) else [int(c.d_ff)] * c.layers
    for size, group in layers.by("width", lambda i: widths[i]):
        yield from swiglu(
            MLP, d, Dim(size, "d_ff" if len(set(widths)) == 1 else f"d_ff_{size}"), group
        )
    yield from per_layer_inputs(c, layers, width)
    yield from norm("model.norm", d)
    yield from named_list("model.altup_unembed_projections", int(a) - 1, d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def named_list(name: str, count: int, d: Dim) -> Parts:
    """Square matrices numbered from zero."""
    for i in range(count):
        yield from linear(f"{name}.{i}", d, d, "altup")


def first_shared_layer(c: Config) -> int:
    """The first layer that reads another one's cache."""
    shared = int(c.size("num_kv_shared_layers", 0, least=0))
    if shared >= c.layers:
        raise ConfigError(
            f"{c.family}: {shared} of {c.layers} layers share a cache, so none is left to have one"
        )
    return c.layers - shared


def gemma3n_attention(c: Config, layers: Layers) -> Parts:
    """Queries everywhere; keys and values only before the layers that share them."""
    kinds = c.kinds("layer_types") or [
        "full_attention" if (i + 1) % 5 == 0 else "sliding_attention" for i in range(c.layers)
    ]
    first_shared = first_shared_layer(c)
    own = layers.where("n_own_kv_layers", lambda i: i < first_shared)
    bias, kv = c.flag("attention_bias"), c.n_kv_heads * c.head_dim
    yield from linear(
        f"{ATTENTION}.q_proj", c.n_heads * c.head_dim, c.d_model, "attn.q", layers, bias
    )
    yield from norm(f"{ATTENTION}.q_norm", c.head_dim, layers, role="attn.q_norm")
    for name in "kv":
        yield from linear(f"{ATTENTION}.{name}_proj", kv, c.d_model, f"attn.{name}", own, bias)
    yield from norm(f"{ATTENTION}.k_norm", c.head_dim, own, role="attn.k_norm")
    for sliding in (True, False):
        members = [i for i, kind in enumerate(kinds) if (kind == "sliding_attention") == sliding]
        group = layers.only("n_sliding_layers" if sliding else "n_full_layers", members)
        yield from shared_mixers(
            c, group, first_shared, c.n_kv_heads, c.head_dim, c.window if sliding else None
        )
    yield from linear(
        f"{ATTENTION}.o_proj", c.d_model, c.n_heads * c.head_dim, "attn.o", layers, bias
    )


def shared_mixers(
    c: Config, group: Layers, first_shared: int, n_kv: Dim, d_h: Dim, window: Dim | None
) -> Parts:
    """A mixer for the layers with a cache of their own, and one for those that read it."""
    full = attention(group, c.n_heads, n_kv, d_h, d_h, window)
    kind = "sliding" if window else "full"
    own = group.where(f"n_own_{kind}_layers", lambda i: i < first_shared)
    if own.indices:
        yield replace(full, layers=own)
    if own is not group and own.indices != group.indices:
        reads = group.where(f"n_shared_{kind}_layers", lambda i: i >= first_shared)
        yield replace(full, layers=reads, kind="shared", keys=Dim(0), values=Dim(0))


@family("gemma4_text")
def gemma4_text(c: Config) -> Parts:
    """Gemma 4's language model: wider heads in full layers, keys as values, shared caches, experts
    beside an MLP.
    """
    layers, d = Layers.all(c.n_layers), c.d_model
    default = [
        "full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(c.layers)
    ]
    kinds = [*(c.kinds("layer_types") or default)[:-1], "full_attention"]
    first_shared = c.layers - int(c.size("num_kv_shared_layers", 0, least=0))
    width = c.size("hidden_size_per_layer_input", 0, least=0)
    yield from embed("model.embed_tokens", c.vocab, d)
    if width:
        yield from per_layer_tables(c, width)
    yield from norms(c, layers, ("input_layernorm",))
    sliding = layers.where("n_sliding_layers", lambda i: kinds[i] == "sliding_attention")
    full = layers.where("n_full_layers", lambda i: kinds[i] != "sliding_attention")
    if sliding.indices:
        yield from gemma4_attention(c, sliding, first_shared, c.n_kv_heads, c.head_dim, c.window)
    if full.indices:
        n_kv, d_h = full_heads(c)
        yield from gemma4_attention(c, full, first_shared, n_kv, d_h, None)
    yield from norms(c, layers, _NORMS)
    double = c.flag("use_double_wide_mlp")
    for wide, group in layers.by("width", lambda i: double and i >= first_shared):
        yield from swiglu(MLP, d, 2 * c.d_ff if wide else c.d_ff, group)
    if c.flag("enable_moe_block"):
        yield from gemma4_experts(c, layers)
    if width:
        yield from per_layer_inputs(c, layers, width)
    yield tensor(f"{BLOCK}.layer_scalar", (1,), "scale", "residual", layers, buffer=True)
    yield from norm("model.norm", d)
    yield from lm_head("lm_head", c.vocab, d, tie(c))


def full_heads(c: Config) -> tuple[Dim, Dim]:
    """Key/value heads of Gemma 4's full layers and their width: its own keys, or overridden layer
    by layer in what transformers 5.15 and later write.
    """
    if KEY in c.raw:
        return c.n_kv_heads, c.head_dim
    alike = c.flag("attention_k_eq_v") and c.optional("num_global_key_value_heads")
    n_kv = c.num_global_key_value_heads if alike else c.n_kv_heads
    if "global_head_dim" not in c.raw:
        c.assumed["global_head_dim"] = 512
    return n_kv, c.size("global_head_dim", 512)


def gemma4_attention(
    c: Config, layers: Layers, first_shared: int, n_kv: Dim, d_h: Dim, window: Dim | None
) -> Parts:
    """One kind of Gemma 4's layers: its heads, its norms, and keys and values where it
    has its own.
    """
    bias, d = c.flag("attention_bias"), c.d_model
    own = layers.where(
        "n_own_sliding_layers" if window else "n_own_full_layers", lambda i: i < first_shared
    )
    yield from linear(f"{ATTENTION}.q_proj", c.n_heads * d_h, d, "attn.q", layers, bias)
    yield from norm(f"{ATTENTION}.q_norm", d_h, layers, role="attn.q_norm")
    if own.indices:
        yield from norm(f"{ATTENTION}.k_norm", d_h, own, role="attn.k_norm")
        yield from linear(f"{ATTENTION}.k_proj", n_kv * d_h, d, "attn.k", own, bias)
        if window or not c.flag("attention_k_eq_v"):
            yield from linear(f"{ATTENTION}.v_proj", n_kv * d_h, d, "attn.v", own, bias)
    yield from shared_mixers(c, layers, first_shared, n_kv, d_h, window)
    yield from linear(f"{ATTENTION}.o_proj", d, c.n_heads * d_h, "attn.o", layers, bias)


def gemma4_experts(c: Config, layers: Layers) -> Parts:
    """Stacked experts beside the dense MLP, with norms of their own."""
    d, n, k = c.d_model, c.n_experts, c.n_active_experts
    yield from linear(f"{BLOCK}.router.proj", n, d, "router", layers)
    yield tensor(f"{BLOCK}.router.scale", (d,), "scale", "router", layers)
    yield tensor(f"{BLOCK}.router.per_expert_scale", (n,), "scale", "router", layers)
    up = tensor(
        f"{BLOCK}.experts.gate_up_proj", (2 * c.d_ff_expert, d), "matmul", "mlp.gate_up", layers
    )
    down = tensor(f"{BLOCK}.experts.down_proj", (d, c.d_ff_expert), "matmul", "mlp.down", layers)
    yield from stacked(iter((up, down)), n, k)
    names = (
        "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2",
        "pre_feedforward_layernorm_2",
    )
    yield from norms(c, layers, names)


@family("gemma4")
def gemma4(c: Config) -> Parts:
    """Gemma 4 with the towers that its config has."""
    text = text_of(c, "gemma4_text", c.tied)
    if isinstance(c.raw.get("vision_config"), dict):
        yield from gemma4_vision(inner(c, "vision_config", "gemma4_vision"), text)
    if isinstance(c.raw.get("audio_config"), dict):
        yield from gemma4_audio(inner(c, "audio_config", "gemma4_audio"), text)
    yield from rename(gemma4_text(text), ("model.", "model.language_model."))


def clipped(parts: Parts, use: bool) -> Parts:
    """Gemma 4's linear layers that clip what goes in and out, at four scalars which are buffers."""
    for part in parts:
        if not isinstance(part, Weight):
            yield part
            continue
        yield replace(part, name=part.name.replace(".weight", ".linear.weight"))
        if use:
            for name in ("input_min", "input_max", "output_min", "output_max"):
                base = part.name.removesuffix(".weight")
                role = f"{part.role.partition('.')[0]}.clip"
                yield tensor(f"{base}.{name}", (), "scale", role, part.layers, buffer=True)


def gemma4_vision(c: Config, text: Config) -> Parts:
    """Gemma 4's vision tower: rotary and learned positions, sandwich norms."""
    p, block, h, use = (
        "model.vision_tower",
        "model.vision_tower.encoder.layers.{layer}",
        named(c, "hidden_size"),
        c.flag("use_clipped_linears"),
    )
    layers, d_h = Layers.all(named(c, "n_layers", "num_hidden_layers")), named(c, "head_dim")
    n, n_kv = (
        named(c, "n_heads", "num_attention_heads"),
        named(c, "n_kv_heads", "num_key_value_heads"),
    )
    patch = c.patch_size
    table = (2, c.position_embedding_size, h)
    yield tensor(f"{p}.patch_embedder.position_embedding_table", table, "lookup", "vision.position")
    yield from linear(f"{p}.patch_embedder.input_proj", h, 3 * patch * patch, "vision.patch")
    for name, shape in (
        ("q", (n * d_h, h)),
        ("k", (n_kv * d_h, h)),
        ("v", (n_kv * d_h, h)),
        ("o", (h, n * d_h)),
    ):
        yield from clipped(
            linear(f"{block}.self_attn.{name}_proj", *shape, f"vision.{name}", layers), use
        )
    for name in "qk":
        yield from norm(f"{block}.self_attn.{name}_norm", d_h, layers, role="vision.norm")
    yield from clipped(
        swiglu(f"{block}.mlp", h, named(c, "intermediate_size"), layers, of="vision"), use
    )
    for name in ("input_layernorm", *_NORMS):
        yield from norm(f"{block}.{name}", h, layers, role="vision.norm")
    if c.flag("standardize"):
        for name in ("std_bias", "std_scale"):
            yield tensor(f"{p}.{name}", (h,), "scale", "vision.norm", buffer=True)
    yield from linear("model.embed_vision.embedding_projection", text.d_model, h, "projector")


def gemma4_audio(c: Config, text: Config) -> Parts:
    """Gemma 4's audio tower: two convolutions and conformer layers."""
    p, block, h, use = (
        "model.audio_tower",
        "model.audio_tower.layers.{layer}",
        named(c, "hidden_size"),
        c.flag("use_clipped_linears"),
    )
    layers, heads = (
        Layers.all(named(c, "n_layers", "num_hidden_layers")),
        named(c, "n_heads", "num_attention_heads"),
    )
    c0, c1 = (
        Dim(v, f"a_channels{i}")
        for i, v in enumerate(c.get("subsampling_conv_channels") or (128, 32))
    )
    out = named(c, "output_proj_dims")
    q = f"{p}.subsample_conv_projection"
    for name, shape in (("layer0", (c0, 1, 3, 3)), ("layer1", (c1, c0, 3, 3))):
        yield tensor(f"{q}.{name}.conv.weight", shape, "conv", "audio.conv")
        yield from norm(f"{q}.{name}.norm", shape[0], role="audio.norm")
    yield from linear(f"{q}.input_proj_linear", h, (c0 // 4) * c1, "audio.in")
    for name in ("feed_forward1", "feed_forward2"):
        yield from clipped(linear(f"{block}.{name}.ffw_layer_1", 4 * h, h, "audio.up", layers), use)
        yield from clipped(
            linear(f"{block}.{name}.ffw_layer_2", h, 4 * h, "audio.down", layers), use
        )
        for part in ("pre_layer_norm", "post_layer_norm"):
            yield from norm(f"{block}.{name}.{part}", h, layers, role="audio.norm")
    for name in ("q_proj", "k_proj", "v_proj", "post"):
        yield from clipped(linear(f"{block}.self_attn.{name}", h, h, "audio.attn", layers), use)
    yield from linear(f"{block}.self_attn.relative_k_proj", h, h, "audio.attn", layers)
    yield tensor(f"{block}.self_attn.per_dim_scale", (h // heads,), "scale", "audio.attn", layers)
    yield from clipped(linear(f"{block}.lconv1d.linear_start", 2 * h, h, "audio.conv", layers), use)
    yield from clipped(linear(f"{block}.lconv1d.linear_end", h, h, "audio.conv", layers), use)
    yield tensor(
        f"{block}.lconv1d.depthwise_conv1d.weight",
        (h, 1, c.conv_kernel_size),
        "conv",
        "audio.conv",
        layers,
    )
    for name in (
        "lconv1d.pre_layer_norm",
        "lconv1d.conv_norm",
        "norm_pre_attn",
        "norm_post_attn",
        "norm_out",
    ):
        yield from norm(f"{block}.{name}", h, layers, role="audio.norm")
    yield from linear(f"{p}.output_proj", out, h, "audio.out", bias=True)
    yield from linear("model.embed_audio.embedding_projection", text.d_model, out, "projector")
