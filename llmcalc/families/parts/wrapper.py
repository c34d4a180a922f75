"""A language model inside a larger one."""

from __future__ import annotations

from llmcalc.anatomy import Parts, rename, under
from llmcalc.config import Config
from llmcalc.families import inner, parts_of


def text_of(c: Config, default_type: str, tied: bool) -> Config:
    """The nested language model's config, its head tied or not as the whole model's
    class decides.
    """
    text = inner(c, "text_config", default_type)
    raw = {
        k: v
        for k, v in text.raw.items()
        if k not in ("architectures", "tie_word_embeddings", "tie_embedding")
    }
    return Config({**raw, "tie_word_embeddings": tied}, defaults=text.defaults, nested=True)


def language(text: Config, prefix: str = "language_model.") -> Parts:
    """The language model's parts below a prefix."""
    return under(prefix, parts_of(text))


def llm_with_top_head(text: Config) -> Parts:
    """The language model as ``model.language_model.*`` with its head outside, as transformers 5
    stores it.
    """
    yield from rename(parts_of(text), ("model.", "model.language_model."))


def n_features(c: Config) -> int:
    """How many layers of the tower the projector reads side by side."""
    chosen = c.get("vision_feature_layer", -1)
    return len(chosen) if isinstance(chosen, list) else 1
