"""The names of a model's tensors: what its parts promise, and what a file calls them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy, Weight

PREFIXES = (
    "model.",
    "transformer.",
    "language_model.",
    "model.language_model.",
    "backbone.",
    "gpt_neox.",
    "bert.",
    "roberta.",
)
_LAYER = re.compile(r"(?<=\.)(\d+)(?=\.)")
_OUTSIDE = ("lm_head", "score")
"""What many files leave outside of a prefix."""


@dataclass(frozen=True, slots=True)
class Want:
    """One tensor that the anatomy promises."""

    shape: tuple[int, ...]
    weight: Weight
    layer: int = 0


def promised(anatomy: Anatomy) -> dict[str, Want]:
    """Every tensor of the anatomy, tied ones and buffers too."""
    wants: dict[str, Want] = {}
    for weight in anatomy.weights:
        shape = tuple(int(s) for s in weight.full_shape)
        per_layer = int(weight.experts) if weight.by_expert else 1
        for number, name in enumerate(weight.names()):
            wants[name] = Want(shape, weight, weight.layers.indices[number // per_layer])
    return wants


def names_in(anatomy: Anatomy, have: Mapping[str, tuple[int, ...]]) -> dict[str, str]:
    """Every promised tensor's name to the one that a file uses for it, prefixes and other published
    names allowed.
    """
    wants = promised(anatomy)
    return dict(zip(wants, alternatives(align(wants, have, []), have), strict=True))


def align(
    wants: Mapping[str, Want], have: Mapping[str, tuple[int, ...]], notes: list[str]
) -> dict[str, Want]:
    """The promised names as the file spells them: under another prefix, or in Mistral's words."""
    best, score, said = dict(wants), sum(n in have for n in wants), ""
    if score == len(wants):
        return best
    for how, spelt in _spellings():
        changed = {spelt(name): want for name, want in wants.items()}
        hits = sum(n in have for n in changed)
        if hits > score and len(changed) == len(wants):
            best, score, said = changed, hits, how
    if said:
        notes.append(f"the file's names are those of the published checkpoint {said}")
    return best


def _spellings() -> Iterator[tuple[str, Callable[[str], str]]]:
    """Ways in which files spell a model's names otherwise."""
    for prefix in PREFIXES:
        yield f"without the prefix {prefix!r}", lambda n, p=prefix: n.removeprefix(p)  # type: ignore[misc]
        yield f"with the prefix {prefix!r}", lambda n, p=prefix: _under(p, n)  # type: ignore[misc]
    yield "in Mistral's own words", _mistral


def _under(prefix: str, name: str) -> str:
    return name if name.startswith(_OUTSIDE) else prefix + name


_MISTRAL = {
    "q_proj": "wq",
    "k_proj": "wk",
    "v_proj": "wv",
    "o_proj": "wo",
    "q_a_proj": "wq_a",
    "q_b_proj": "wq_b",
    "kv_a_proj_with_mqa": "wkv_a_with_mqa",
    "kv_b_proj": "wkv_b",
    "q_a_layernorm": "q_a_norm",
    "kv_a_layernorm": "kv_a_norm",
    "self_attn": "attention",
    "mlp": "feed_forward",
    "block_sparse_moe": "feed_forward",
    "gate_proj": "w1",
    "down_proj": "w2",
    "up_proj": "w3",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "embed_tokens": "tok_embeddings",
    "lm_head": "output",
}
"""The words of transformers' names in Mistral's checkpoints (vLLM 0.33, ``models/mistral.py``)."""


def _mistral(name: str) -> str:
    words = [_MISTRAL.get(word, word) for word in name.removeprefix("model.").split(".")]
    # in Mistral Large 3 experts and what stands beside them are modules of the layer itself
    if ".mlp." in name and {"experts", "shared_experts", "gate"} & set(words[3:4]):
        words.remove("feed_forward")
    return ".".join(words)


def alternatives(wants: Mapping[str, Want], have: Mapping[str, tuple[int, ...]]) -> dict[str, Want]:
    """The promised names, with a tensor's other published name where the file uses that."""
    chosen: dict[str, Want] = {}
    for name, want in wants.items():
        if name not in have and want.weight.also:
            pattern, numbers = want.weight.also, _LAYER.findall(name)
            for number in numbers:
                pattern = re.sub(r"\{(layer|expert)\}", number, pattern, count=1)
            name = pattern if pattern in have else name
        chosen[name] = want
    return chosen
