"""BERT and the encoders after it: RoBERTa to ModernBERT."""

from __future__ import annotations

from dataclasses import replace

from llmcalc.anatomy import Layers, Mixer, Parts, Weight
from llmcalc.blocks import attention, embed, linear, norm, tensor
from llmcalc.config import Config
from llmcalc.dims import Dim
from llmcalc.errors import ConfigError
from llmcalc.families import family


def head_class(c: Config, default: str = "MaskedLM") -> str:
    """What the config's class adds to the encoder:

    ``MaskedLM``, ``Model``, ``PreTraining`` and so on.
    """
    named = c.raw.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    if name.endswith(("LMHeadModel", "ForCausalLM", "Decoder", "LMModel")):
        return "MaskedLM"
    for known in ("MaskedLM", "PreTraining", "Model", "Encoder"):
        if name.endswith(known):
            return "Model" if known == "Encoder" else known
    if not name:
        return default
    raise ConfigError(
        f"{c.family}: the head of {name} is not described",
        hint="the encoder with its language-model head is",
    )


def encoder_mixer(c: Config, layers: Layers, d_h: Dim) -> Mixer:
    """Attention over the whole text: without a cache, or with one where the config says
    ``is_decoder``.
    """
    full = attention(layers, c.n_heads, c.n_heads, d_h, d_h)
    return full if c.flag("is_decoder") else replace(full, kind="none")


def embeddings(p: str, c: Config, width: Dim, positions: bool = True, types: bool = True) -> Parts:
    """Token, position and type tables and their norm."""
    yield from embed(f"{p}.word_embeddings", c.vocab, width)
    if positions:
        yield from embed(f"{p}.position_embeddings", c.max_context, width, "embed.position")
    if types:
        yield from embed(f"{p}.token_type_embeddings", c.type_vocab_size, width, "embed.type")
    yield from norm(f"{p}.LayerNorm", width, bias=True)


def bert_layer(p: str, c: Config, layers: Layers, qkv_bias: bool = True) -> Parts:
    """One of BERT's layers: attention and MLP, each with its norm after."""
    d, d_h = c.d_model, c.split_head_dim
    for name in ("query", "key", "value"):
        yield from linear(f"{p}.attention.self.{name}", d, d, f"attn.{name[0]}", layers, qkv_bias)
    yield encoder_mixer(c, layers, d_h)
    yield from linear(f"{p}.attention.output.dense", d, d, "attn.o", layers, True)
    yield from norm(f"{p}.attention.output.LayerNorm", d, layers, bias=True)
    if c.flag("add_cross_attention"):
        for name in ("query", "key", "value"):
            yield from linear(
                f"{p}.crossattention.self.{name}", d, d, f"cross.{name[0]}", layers, qkv_bias
            )
        yield from linear(f"{p}.crossattention.output.dense", d, d, "cross.o", layers, True)
        yield from norm(f"{p}.crossattention.output.LayerNorm", d, layers, bias=True)
    yield from linear(f"{p}.intermediate.dense", c.d_ff, d, "mlp.up", layers, True)
    yield from linear(f"{p}.output.dense", d, c.d_ff, "mlp.down", layers, True)
    yield from norm(f"{p}.output.LayerNorm", d, layers, bias=True)


def decoder(c: Config, name: str, width: Dim, tied_to: str, bias: str) -> Parts:
    """The projection to the vocabulary, its matrix the embedding's and its bias that of ``bias``
    where tied.
    """
    to, bias_to = (tied_to, bias) if c.tied else (None, None)
    yield tensor(f"{name}.weight", (c.vocab, width), "matmul", "head", tied_to=to)
    yield tensor(f"{name}.bias", (c.vocab,), "add", "head", tied_to=bias_to)


def masked_head(c: Config, p: str, prefix: str, width: Dim) -> Parts:
    """BERT's head: a transform, its norm, the tied projection and a bias."""
    yield tensor(f"{p}.bias", (c.vocab,), "add", "head")
    yield from linear(f"{p}.transform.dense", width, c.d_model, "head", bias=True)
    yield from norm(f"{p}.transform.LayerNorm", width, bias=True, role="head")
    yield from decoder(
        c, f"{p}.decoder", width, f"{prefix}.embeddings.word_embeddings.weight", f"{p}.bias"
    )


@family("bert", "roc_bert", "big_bird")
def bert(c: Config) -> Parts:
    """BERT (arXiv 1810.04805), RoCBERT with its glyph tables, BigBird."""
    kind, d, layers = head_class(c), c.d_model, Layers.all(c.n_layers)
    p = {"bert": "bert", "roc_bert": "roc_bert", "big_bird": "bert"}[c.family]
    yield from embeddings(f"{p}.embeddings", c, d)
    if c.family == "roc_bert":
        yield from glyphs(c, f"{p}.embeddings")
    qkv_bias = c.flag("use_bias", True)
    yield from bert_layer(f"{p}.encoder.layer.{{layer}}", c, layers, qkv_bias)
    if c.family == "big_bird":
        yield from linear(f"{p}.pooler", d, d, "pooler", bias=True)
    elif kind != "MaskedLM":
        yield from linear(f"{p}.pooler.dense", d, d, "pooler", bias=True)
    yield from masked_head(c, "cls.predictions", p, d)
    if kind == "PreTraining" and c.family != "roc_bert":
        yield from linear("cls.seq_relationship", 2, d, "head", bias=True)


def glyphs(c: Config, p: str) -> Parts:
    """RoCBERT's tables of pronunciation and shape, and their join."""
    width = c.d_model
    for name in ("pronunciation", "shape"):
        dim = c.size(f"{name}_embed_dim")
        yield from embed(f"{p}.{name}_embed", c.size(f"{name}_vocab_size"), dim, "embed.type")
        width = width + dim if c.flag(f"enable_{name}") else width
    if c.flag("concat_input"):
        yield from linear(f"{p}.map_inputs_layer", c.d_model, width, "embed.join", bias=True)


@family("roberta", "camembert", "xlm-roberta", "xmod")
def roberta(c: Config) -> Parts:
    """RoBERTa (arXiv 1907.11692) and its multilingual kin."""
    kind, d, layers, p = (
        head_class(c),
        c.d_model,
        Layers.all(c.n_layers),
        "roberta.encoder.layer.{layer}",
    )
    words, head = "roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"
    # its files store the head, not the table
    swapped = c.family == "xlm-roberta" and c.tied and kind == "MaskedLM"
    for part in embeddings("roberta.embeddings", c, d):
        tied = swapped and isinstance(part, Weight) and part.name == words
        yield replace(part, tied_to=head) if tied and isinstance(part, Weight) else part
    yield from bert_layer(p, c, layers)
    if c.family == "xmod":
        yield from adapters(c, f"{p}.output", layers)
    if kind == "Model":
        yield from linear("roberta.pooler.dense", d, d, "pooler", bias=True)
    yield tensor("lm_head.bias", (c.vocab,), "add", "head")
    yield from linear("lm_head.dense", d, d, "head", bias=True)
    yield from norm("lm_head.layer_norm", d, bias=True, role="head")
    for part in decoder(c, "lm_head.decoder", d, words, "lm_head.bias"):
        yield (
            replace(part, tied_to=None)
            if swapped and isinstance(part, Weight) and part.name == head
            else part
        )


def adapters(c: Config, p: str, layers: Layers) -> Parts:
    """X-MOD's adapters, one per language (arXiv 2205.06266)."""
    d, low = c.d_model, Dim(int(c.d_model) // int(c.adapter_reduction_factor), "d_adapter")
    if c.flag("adapter_layer_norm"):
        yield from norm(f"{p}.adapter_layer_norm", d, layers, bias=True)
    for code in c.get("languages") or []:
        yield from linear(f"{p}.adapter_modules.{code}.dense1", low, d, "adapter", layers, True)
        yield from linear(f"{p}.adapter_modules.{code}.dense2", d, low, "adapter", layers, True)
    if c.flag("pre_norm"):
        yield from norm("roberta.encoder.LayerNorm", d, bias=True)


@family("bert-generation")
def bert_generation(c: Config) -> Parts:
    """BERT for generation (arXiv 1907.12461): no type table, a plain head."""
    d = c.d_model
    yield from embeddings("bert.embeddings", c, d, types=False)
    yield from bert_layer("bert.encoder.layer.{layer}", c, Layers.all(c.n_layers))
    yield tensor("lm_head.bias", (c.vocab,), "add", "head")
    yield from decoder(
        c, "lm_head.decoder", d, "bert.embeddings.word_embeddings.weight", "lm_head.bias"
    )


@family("electra")
def electra(c: Config) -> Parts:
    """ELECTRA (arXiv 2003.10555): narrow embeddings; a generator's or a discriminator's head."""
    kind, d, e = head_class(c), c.d_model, c.size("embedding_size")
    yield from embeddings("electra.embeddings", c, e)
    if e != d:
        yield from linear("electra.embeddings_project", d, e, "embed.join", bias=True)
    yield from bert_layer("electra.encoder.layer.{layer}", c, Layers.all(c.n_layers))
    if kind == "PreTraining":
        yield from linear("discriminator_predictions.dense", d, d, "head", bias=True)
        yield from linear("discriminator_predictions.dense_prediction", 1, d, "head", bias=True)
        return
    yield from norm("generator_predictions.LayerNorm", e, bias=True, role="head")
    yield from linear("generator_predictions.dense", e, d, "head", bias=True)
    to = "electra.embeddings.word_embeddings.weight" if c.tied else None
    yield tensor("generator_lm_head.weight", (c.vocab, e), "matmul", "head", tied_to=to)
    yield tensor("generator_lm_head.bias", (c.vocab,), "add", "head")


@family("rembert")
def rembert(c: Config) -> Parts:
    """RemBERT (arXiv 2010.12821): narrow input embeddings, a wide output that is never tied."""
    kind, d, e, o = head_class(c), c.d_model, c.input_embedding_size, c.output_embedding_size
    yield from embeddings("rembert.embeddings", c, e)
    yield from linear("rembert.encoder.embedding_hidden_mapping_in", d, e, "embed.join", bias=True)
    yield from bert_layer("rembert.encoder.layer.{layer}", c, Layers.all(c.n_layers))
    if kind == "Model":
        yield from linear("rembert.pooler.dense", d, d, "pooler", bias=True)
    yield from linear("cls.predictions.dense", o, d, "head", bias=True)
    yield from linear("cls.predictions.decoder", c.vocab, o, "head", bias=True)
    yield from norm("cls.predictions.LayerNorm", o, bias=True, role="head")


@family("roformer")
def roformer(c: Config) -> Parts:
    """RoFormer (arXiv 2104.09864): rotary positions, whose table the checkpoint stores."""
    d, e = c.d_model, c.optional("embedding_size") or c.d_model
    yield from embeddings("roformer.embeddings", c, e, positions=False)
    if e != d:
        yield from linear("roformer.embeddings_project", d, e, "embed.join", bias=True)
    yield from embed(
        "roformer.encoder.embed_positions", c.max_context, c.split_head_dim, "embed.position"
    )
    yield from bert_layer("roformer.encoder.layer.{layer}", c, Layers.all(c.n_layers))
    yield from masked_head(c, "cls.predictions", "roformer", e)


@family("albert")
def albert(c: Config) -> Parts:
    """ALBERT (arXiv 1909.11942): all layers of a group use one layer's weights."""
    kind, d, e = head_class(c), c.d_model, c.size("embedding_size")
    groups, inner = Layers.all(c.num_hidden_groups, "n_groups"), int(c.inner_group_num)
    uses = c.n_layers // c.num_hidden_groups
    yield from embeddings("albert.embeddings", c, e)
    yield from linear("albert.encoder.embedding_hidden_mapping_in", d, e, "embed.join", bias=True)
    for j in range(inner):
        p = f"albert.encoder.albert_layer_groups.{{layer}}.albert_layers.{j}"
        for part in albert_layer(p, c, groups):
            yield replace(part, uses=uses) if isinstance(part, Weight) else part
    yield replace(
        attention(Layers.all(c.n_layers), c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim),
        kind="none",
    )
    if kind != "MaskedLM":
        yield from linear("albert.pooler", d, d, "pooler", bias=True)
    yield tensor("predictions.bias", (c.vocab,), "add", "head")
    yield from norm("predictions.LayerNorm", e, bias=True, role="head")
    yield from linear("predictions.dense", e, d, "head", bias=True)
    yield from decoder(
        c, "predictions.decoder", e, "albert.embeddings.word_embeddings.weight", "predictions.bias"
    )
    if kind == "PreTraining":
        yield from linear("sop_classifier.classifier", 2, d, "head", bias=True)


def albert_layer(p: str, c: Config, layers: Layers) -> Parts:
    """The one layer that a group shares."""
    d = c.d_model
    yield from norm(f"{p}.full_layer_layer_norm", d, layers, bias=True)
    for name in ("query", "key", "value"):
        yield from linear(f"{p}.attention.{name}", d, d, f"attn.{name[0]}", layers, True)
    yield from linear(f"{p}.attention.dense", d, d, "attn.o", layers, True)
    yield from norm(f"{p}.attention.LayerNorm", d, layers, bias=True)
    yield from linear(f"{p}.ffn", c.d_ff, d, "mlp.up", layers, True)
    yield from linear(f"{p}.ffn_output", d, c.d_ff, "mlp.down", layers, True)


@family("distilbert")
def distilbert(c: Config) -> Parts:
    """DistilBERT (arXiv 1910.01108): half of BERT's layers, no types, no pooler."""
    d = c.size("d_model", None, "hidden_size", "dim")
    layers, p = Layers.all(c.n_layers), "distilbert.transformer.layer.{layer}"
    d_ff = c.size("d_ff", None, "hidden_dim")
    yield from embed("distilbert.embeddings.word_embeddings", c.vocab, d)
    yield from embed(
        "distilbert.embeddings.position_embeddings", c.max_context, d, "embed.position"
    )
    yield from norm("distilbert.embeddings.LayerNorm", d, bias=True)
    for name in "qkv":
        yield from linear(f"{p}.attention.{name}_lin", d, d, f"attn.{name}", layers, True)
    yield encoder_mixer(c, layers, c.split_head_dim)
    yield from linear(f"{p}.attention.out_lin", d, d, "attn.o", layers, True)
    yield from norm(f"{p}.sa_layer_norm", d, layers, bias=True)
    yield from linear(f"{p}.ffn.lin1", d_ff, d, "mlp.up", layers, True)
    yield from linear(f"{p}.ffn.lin2", d, d_ff, "mlp.down", layers, True)
    yield from norm(f"{p}.output_layer_norm", d, layers, bias=True)
    head_class(c)
    yield from linear("vocab_transform", d, d, "head", bias=True)
    yield from norm("vocab_layer_norm", d, bias=True, role="head")
    to = "distilbert.embeddings.word_embeddings.weight" if c.tied else None
    yield tensor("vocab_projector.weight", (c.vocab, d), "matmul", "head", tied_to=to)
    yield tensor("vocab_projector.bias", (c.vocab,), "add", "head")


@family("deberta-v2")
def deberta(c: Config) -> Parts:
    """DeBERTa-v2 and v3 (arXiv 2006.03654): content and position attended apart, their projections
    shared or not.
    """
    d, e, layers, p = (
        c.d_model,
        c.optional("embedding_size") or c.d_model,
        Layers.all(c.n_layers),
        "deberta.embeddings",
    )
    a = c.n_heads * (c.optional("attention_head_size") or c.split_head_dim)
    relative = c.flag("relative_attention")
    kinds = c.get("pos_att_type") or []
    kinds = kinds.lower().split("|") if isinstance(kinds, str) else kinds
    head_class(c)
    yield from embed(f"{p}.word_embeddings", c.vocab, e)
    if c.flag("position_biased_input"):
        yield from embed(f"{p}.position_embeddings", c.max_context, e, "embed.position")
    if c.type_vocab_size:
        yield from embed(f"{p}.token_type_embeddings", c.type_vocab_size, e, "embed.type")
    if e != d:
        yield from linear(f"{p}.embed_proj", d, e, "embed.join")
    yield from norm(f"{p}.LayerNorm", d, bias=True)
    for part in bert_layer("deberta.encoder.layer.{layer}", c, layers):
        if isinstance(part, Weight) and ".self." in part.name:
            shape = (a, *part.shape[1:])
            name = part.name.replace(".weight", "_proj.weight").replace(".bias", "_proj.bias")
            part = replace(part, name=name, shape=shape)
        yield part
    if relative and not c.flag("share_att_key"):
        for key, name in (("c2p", "key"), ("p2c", "query")):
            if key in kinds:
                yield from linear(
                    f"deberta.encoder.layer.{{layer}}.attention.self.pos_{name}_proj",
                    a,
                    d,
                    "attn.pos",
                    layers,
                    True,
                )
    yield from deberta_extras(c, relative)
    yield from deberta_head(c, e)


def deberta_extras(c: Config, relative: bool) -> Parts:
    """The table of relative positions, its norm, and a convolution where there is one."""
    d = c.d_model
    if relative:
        buckets, most = (
            c.get("position_buckets", -1) or -1,
            c.get("max_relative_positions", -1) or -1,
        )
        rows = buckets if buckets > 0 else most if most >= 1 else int(c.max_context)
        yield from embed(
            "deberta.encoder.rel_embeddings", 2 * Dim(rows, "n_positions"), d, "embed.position"
        )
    if "layer_norm" in str(c.get("norm_rel_ebd", "none")).lower().split("|"):
        yield from norm("deberta.encoder.LayerNorm", d, bias=True)
    width = c.get("conv_kernel_size", 0) or 0
    if width > 0:
        shape = (d, d // (c.get("conv_groups", 1) or 1), width)
        yield tensor("deberta.encoder.conv.conv.weight", shape, "conv", "conv")
        yield tensor("deberta.encoder.conv.conv.bias", (d,), "add", "conv")
        yield from norm("deberta.encoder.conv.LayerNorm", d, bias=True)


def deberta_head(c: Config, e: Dim) -> Parts:
    """The masked-language-model head, in its old form or in its new one."""
    if c.flag("legacy", True):
        p = "cls.predictions"
        yield tensor(f"{p}.bias", (c.vocab,), "add", "head")
        yield from linear(f"{p}.transform.dense", e, c.d_model, "head", bias=True)
        yield from norm(f"{p}.transform.LayerNorm", e, bias=True, role="head")
        yield from decoder(
            c, f"{p}.decoder", e, "deberta.embeddings.word_embeddings.weight", f"{p}.bias"
        )
        return
    yield tensor("lm_predictions.lm_head.bias", (c.vocab,), "add", "head")
    yield from linear("lm_predictions.lm_head.dense", c.d_model, c.d_model, "head", bias=True)
    yield from norm("lm_predictions.lm_head.LayerNorm", c.d_model, bias=True, role="head")


@family("modernbert", "modernbert-decoder")
def modernbert(c: Config) -> Parts:
    """ModernBERT (arXiv 2412.13663): rotary positions, gated MLP, windows in two of
    three layers.
    """
    d, layers, block, decodes = (
        c.d_model,
        Layers.all(c.n_layers),
        "model.layers.{layer}",
        c.family == "modernbert-decoder",
    )
    bias, norm_bias, mlp_bias = c.flag("attention_bias"), c.flag("norm_bias"), c.flag("mlp_bias")
    head_class(c)
    yield from embed("model.embeddings.tok_embeddings", c.vocab, d)
    yield from norm("model.embeddings.norm", d, bias=norm_bias)
    yield from norm(
        f"{block}.attn_norm", d, layers.where("n_later_layers", lambda i: i > 0), norm_bias
    )
    if decodes:
        for name in "qkv":
            yield from linear(f"{block}.attn.{name}_proj", d, d, f"attn.{name}", layers, bias)
    else:
        yield from linear(f"{block}.attn.Wqkv", 3 * d, d, "attn.qkv", layers, bias)
    yield from modern_mixers(c, layers, decodes)
    yield from linear(f"{block}.attn.Wo", d, d, "attn.o", layers, bias)
    yield from norm(f"{block}.mlp_norm", d, layers, norm_bias)
    yield from linear(f"{block}.mlp.Wi", 2 * c.d_ff, d, "mlp.gate_up", layers, mlp_bias)
    yield from linear(f"{block}.mlp.Wo", d, c.d_ff, "mlp.down", layers, mlp_bias)
    yield from norm("model.final_norm", d, bias=norm_bias)
    head = "lm_head" if decodes else "head"
    yield from linear(f"{head}.dense", d, d, "head", bias=c.flag("classifier_bias"))
    yield from norm(f"{head}.norm", d, bias=norm_bias, role="head")
    to = "model.embeddings.tok_embeddings.weight" if c.tied else None
    yield tensor("decoder.weight", (c.vocab, d), "matmul", "head", tied_to=to)
    if c.flag("decoder_bias"):
        yield tensor("decoder.bias", (c.vocab,), "add", "head")


def modern_mixers(c: Config, layers: Layers, decodes: bool) -> Parts:
    """ModernBERT's attention: everything in every third layer, a window around the token in the
    others.
    """
    every = c.size("global_attn_every_n_layers", 3)
    sliding = c.sliding(lambda i: i % every)
    size = c.raw.get("sliding_window") or (c.get("local_attention") or 0) // 2
    near, far = layers.split("sliding", lambda i: i in sliding)
    for group, window in ((near, Dim(size, "window") if size else None), (far, None)):
        if group.indices:
            full = attention(
                group, c.n_heads, c.n_heads, c.split_head_dim, c.split_head_dim, window
            )
            yield full if decodes else replace(full, kind="none")
