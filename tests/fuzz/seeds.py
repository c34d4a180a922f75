"""Writes the small seeds of the corpus, each with the format's real writer: ``python -m
tests.fuzz.seeds``.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from llmcalc import config as sizes
from llmcalc.sources import presets
from tests.fuzz.targets import SHARD

CORPUS = Path(__file__).parent / "corpus"
KIN = {
    "gguf_vocabulary": ("gguf_file",),
    "tensor_values": ("gguf_file", "safetensors_header"),
    "gguf_beginning": ("gguf_file",),
    "config_formats": ("config",),
    "json_object": ("config", "chat_messages"),
    "logits_file": ("safetensors_header",),
}
"""Targets that begin with the seeds of others too."""
TEXT = "The weather is nice. Der Größte! 12345, 678; the cat sat on the mat; 日本語 and 🙂 too.\n"
SIZES = {
    "vocab_size": 16,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    **SIZES,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}

Seeds = Iterator[tuple[str, bytes]]


def files(target: str) -> list[Path]:
    """The kept files that a target begins with."""
    return [
        p for folder in (target, *KIN.get(target, ())) for p in sorted((CORPUS / folder).glob("*"))
    ]


def begin(target: str, folder: Path) -> list[bytes]:
    """Puts what a target begins with into ``folder/seeds``: the kept files, and for configs every
    family's.
    """
    contents = [path.read_bytes() for path in files(target)]
    if target in ("config", "config_formats"):
        contents += families()
    (folder / "seeds").mkdir()
    for number, content in enumerate(contents):
        (folder / "seeds" / str(number)).write_bytes(content)
    return contents


def families() -> list[bytes]:
    """A small config of every family: those of the tests, and presets cut down to three layers."""
    tiny = json.loads((Path(__file__).parents[1] / "families" / "tiny.json").read_text())
    found = [entry["config"] for entry in tiny.values()]
    known = {config.get("model_type") for config in found}
    for kind, names in presets.by_model_type().items():
        if kind not in known:
            found.append(_cut(presets.load(names[0])))
    return [json.dumps(config).encode() for config in found]


def _cut(raw: dict[str, Any], layers: int = 3) -> dict[str, Any]:
    """A config of three layers, its lists with one entry per layer cut too."""
    n = next((raw[key] for key in sizes.SIZES["n_layers"] if isinstance(raw.get(key), int)), 0)
    cut = {
        k: (
            _cut(v)
            if isinstance(v, dict)
            else v[:layers]
            if isinstance(v, list) and len(v) == n
            else v
        )
        for k, v in raw.items()
    }
    return {k: layers if k in sizes.SIZES["n_layers"] and v == n else v for k, v in cut.items()}


def safetensors_header() -> Seeds:
    """Headers by the safetensors package: none, one, and many kinds of tensors."""
    import torch
    from safetensors.torch import save

    yield "empty", save({}, {"format": "pt"})
    yield "one", save({"w": torch.arange(6.0).reshape(2, 3)})
    kinds = {
        "bf16": torch.bfloat16,
        "fp8": torch.float8_e4m3fn,
        "i64": torch.int64,
        "u8": torch.uint8,
    }
    yield (
        "kinds",
        save(
            {name: torch.ones(4).to(kind) for name, kind in kinds.items()}
            | {"scalar": torch.ones(())}
        ),
    )
    yield "logits", save({"logits": torch.linspace(-2, 2, 8, dtype=torch.bfloat16)})


def safetensors_index() -> Seeds:
    """Indexes with two shards; one contradicts them, one promises more."""
    import torch
    from safetensors.torch import save

    shards = [save({f"{i}.weight": torch.ones(2), f"{i}.bias": torch.ones(1)}) for i in range(2)]
    places = {f"{i}.{kind}": f"{i}.safetensors" for i in range(2) for kind in ("weight", "bias")}
    for name, size in (("index", 24), ("contradiction", 25)):
        yield (
            name,
            SHARD.join(
                [
                    json.dumps({"metadata": {"total_size": size}, "weight_map": places}).encode(),
                    *shards,
                ]
            ),
        )
    yield (
        "absent",
        SHARD.join(
            [json.dumps({"weight_map": {**places, "2.weight": "0.safetensors"}}).encode(), *shards]
        ),
    )


def config() -> Seeds:
    """Small configs: plain, with windows, and with a model inside."""
    yield "llama.json", json.dumps(LLAMA).encode()
    mixed = {
        **LLAMA,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 4,
        "head_dim": 4,
    }
    yield (
        "gemma2.json",
        json.dumps({**mixed, "model_type": "gemma2", "torch_dtype": "bfloat16"}).encode(),
    )
    packed = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    inside = {
        "model_type": "mistral3",
        "text_config": {**LLAMA, "model_type": "mistral"},
        "quantization_config": packed,
    }
    yield "mistral3.json", json.dumps(inside).encode()


def config_and_tensors() -> Seeds:
    """Configs beside checkpoints that hold what they promise, or less."""
    import torch
    from safetensors.torch import save

    from llmcalc.sources import Model

    def beside(raw: dict[str, Any], drop: str = "-") -> bytes:
        weights = [w for w in Model("m", "m", raw).anatomy.weights if not w.tied_to]
        held = {
            name: torch.zeros([int(s) for s in w.full_shape], dtype=torch.int8)
            for w in weights
            for name in w.names()
        }
        return (
            json.dumps(raw).encode()
            + SHARD
            + save({k: v for k, v in held.items() if drop not in k})
        )

    yield "same", beside(LLAMA)
    yield "missing", beside({**LLAMA, "num_nextn_predict_layers": 1}, "layers.1")
    packed = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    yield "fp8", beside({**LLAMA, "num_hidden_layers": 1, "quantization_config": packed})


def gguf_file() -> Seeds:
    """GGUF files by ggml's own writer: both kinds of vocabulary, several architectures."""
    import numpy as np
    from gguf import GGMLQuantizationType as Kind

    yield "empty.gguf", _gguf("llama", lambda w: None)

    def llama(w: Any) -> None:
        _sizes(w)
        w.add_tokenizer_model("llama")
        tokens = [
            "<unk>",
            "<s>",
            "</s>",
            *(f"<0x{b:02X}>" for b in range(9)),
            "▁",
            "t",
            "h",
            "e",
            "th",
            "▁the",
        ]
        w.add_token_list(tokens)
        w.add_token_scores([-float(i) for i in range(len(tokens))])
        w.add_token_types([2, 3, 3] + [6] * 9 + [1] * 6)
        w.add_unk_token_id(0)
        w.add_bos_token_id(1)
        w.add_chat_template("{% for m in messages %}{{ bos_token + m.content }}{% endfor %}")
        w.add_tensor("token_embd.weight", np.zeros((18, 8), np.float16))
        w.add_tensor("blk.0.attn_norm.weight", np.ones(8, np.float32))
        w.add_tensor("blk.0.attn_q.weight", np.zeros((8, 34), np.uint8), raw_dtype=Kind.Q8_0)

    def gpt2(w: Any) -> None:
        _sizes(w)
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre("smollm")
        w.add_token_list(["<|endoftext|>", "t", "h", "e", "th", "the", "Ġ", "Ġthe"])
        w.add_token_types([3, 1, 1, 1, 1, 1, 4, 1])
        w.add_token_merges(["t h", "th e", "Ġ the"])
        w.add_tensor("w", np.zeros((2, 144), np.uint8), raw_dtype=Kind.Q4_K)

    yield "llama.gguf", _gguf("llama", llama)
    yield "gpt2.gguf", _gguf("gpt2", gpt2)
    yield (
        "experts.gguf",
        _gguf("llama", lambda w: (_sizes(w), w.add_expert_count(4), w.add_expert_used_count(2))),
    )
    yield (
        "mamba.gguf",
        _gguf("mamba", lambda w: (_sizes(w), w.add_ssm_state_size(4), w.add_ssm_conv_kernel(4))),
    )
    yield (
        "deepseek2.gguf",
        _gguf("deepseek2", lambda w: (_sizes(w), w.add_kv_lora_rank(4), w.add_q_lora_rank(4))),
    )


def _sizes(w: Any) -> None:
    import numpy as np

    for add, value in (
        (w.add_block_count, 1),
        (w.add_embedding_length, 8),
        (w.add_head_count, 2),
        (w.add_head_count_kv, 1),
        (w.add_feed_forward_length, 12),
        (w.add_context_length, 64),
        (w.add_vocab_size, 18),
    ):
        add(value)
    w.add_tensor("output_norm.weight", np.ones(8, np.float32))


def _gguf(architecture: str, fill: Callable[[Any], object]) -> bytes:
    from gguf import GGUFWriter

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.gguf"
        writer = GGUFWriter(path, architecture)
        fill(writer)
        for write in (
            "write_header_to_file",
            "write_kv_data_to_file",
            "write_tensors_to_file",
            "close",
        ):
            getattr(writer, write)()
        return path.read_bytes()


def gguf_parts() -> Seeds:
    """Both by hand: the writer splits files of gigabytes alone."""
    import numpy as np

    def part(number: int) -> bytes:
        def fill(w: Any) -> None:
            w.add_uint16("split.no", number)
            w.add_uint16("split.count", 2)
            w.add_int32("split.tensors.count", 2)
            w.add_tensor(f"blk.{number}.attn_norm.weight", np.ones(8, np.float32))

        return _gguf("llama", fill)

    yield "two", SHARD.join([part(0), part(1)])


def adapter_config() -> Seeds:
    """What PEFT writes beside LoRA and DoRA weights."""
    lora = {
        "peft_type": "LORA",
        "r": 8,
        "base_model_name_or_path": "gpt2",
        "target_modules": ["c_attn", "wte"],
    }
    yield "lora.json", json.dumps(lora).encode()
    more = {
        "use_dora": True,
        "rank_pattern": {"c_attn": 4},
        "modules_to_save": ["lm_head"],
        "bias": "none",
    }
    yield "dora.json", json.dumps({**lora, **more}).encode()


def ollama_manifest() -> Seeds:
    """A manifest as Ollama keeps it."""
    kinds = {"model": "0" * 64, "template": "1" * 64}
    layers = [
        {"mediaType": f"application/vnd.ollama.image.{k}", "digest": f"sha256:{v}"}
        for k, v in kinds.items()
    ]
    yield "m", json.dumps({"schemaVersion": 2, "config": {}, "layers": layers}).encode()


def kept_header() -> Seeds:
    """An entry of the cache without its hash, which the target adds."""
    key = "org/m@main:a.gguf"
    yield (
        "entry",
        len(key.encode()).to_bytes(4, "little") + key.encode() + zlib.compress(b"header " * 40, 3),
    )


def tokenizer_json() -> Seeds:
    """One file of every model of the tokenizers package."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        processors,
        trainers,
    )

    special = ["<s>", "</s>", "<unk>"]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    bpe.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=90, special_tokens=special, show_progress=False)
    )
    bpe.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    yield "bpe.json", bpe.to_str().encode()
    unigram = Tokenizer(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁")])
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=60, special_tokens=special, unk_token="<unk>", show_progress=False
    )
    unigram.train_from_iterator([TEXT], trainer)
    yield "unigram.json", unigram.to_str().encode()
    words = Tokenizer(
        models.WordPiece({"[UNK]": 0, "the": 1, "##s": 2, "cat": 3}, unk_token="[UNK]")
    )
    words.normalizer, words.pre_tokenizer = (
        normalizers.BertNormalizer(),
        pre_tokenizers.BertPreTokenizer(),
    )
    words.decoder = decoders.WordPiece()
    yield "wordpiece.json", words.to_str().encode()
    level = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<unk>": 2}, unk_token="<unk>"))
    level.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    level.enable_truncation(3)
    level.enable_padding(length=5)
    yield "wordlevel.json", level.to_str().encode()


def tokenizer_model() -> Seeds:
    """Two models by the sentencepiece trainer."""
    import sentencepiece

    for kind, more in (
        ("unigram", {"vocab_size": 52}),
        ("bpe", {"vocab_size": 320, "byte_fallback": True}),
    ):
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([TEXT] * 3),
            model_writer=out,
            model_type=kind,
            hard_vocab_limit=False,
            minloglevel=9,
            normalization_rule_name="identity",
            **more,
        )
        yield f"{kind}.model", out.getvalue()


def tekken() -> Seeds:
    """A small Tekken file: the bytes, two words, two special tokens."""
    words = [bytes([b]) for b in range(256)] + [b"th", b"the"]
    vocab = [
        {"rank": i, "token_bytes": base64.b64encode(w).decode(), "token_str": None}
        for i, w in enumerate(words)
    ]
    sizes = {
        "default_vocab_size": 260,
        "default_num_special_tokens": 2,
        "version": "v3",
        "pattern": r"\s+|\S+",
    }
    special = [
        {"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(("<s>", "</s>"))
    ]
    yield (
        "tekken.json",
        json.dumps({"config": sizes, "vocab": vocab, "special_tokens": special}).encode(),
    )


CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
LLAMA_3 = (
    "{%- set ns = namespace(n=0) %}{{- bos_token }}"
    "{%- for m in messages if m.role != 'tool' %}{%- set ns.n = ns.n + 1 %}"
    "{%- if m.tool_calls is defined %}{{- m.tool_calls | tojson(indent=2) }}"
    "{%- else %}{{- m.content | trim }}{%- endif %}"
    "{%- if loop.last %}{% break %}{% endif %}{%- endfor %}{{ strftime_now('%d %b %Y') }}"
)
MACRO = (
    "{% macro shown(c) %}{% if c is string %}{{ c }}"
    "{% else %}{% for p in c %}{{ p.text }}{% endfor %}{% endif %}{% endmacro %}"
    "{% if messages[0].role not in ['user', 'system'] %}{{ raise_exception('first') }}{% endif %}"
    "{% for m in messages %}{{ shown(m.content) }}{{ eos_token * 2 }}{% endfor %}"
)


def chat_template() -> Seeds:
    """Templates with the parts that published ones use."""
    for name, text in (("chatml", CHATML), ("llama3", LLAMA_3), ("macro", MACRO)):
        yield f"{name}.jinja", text.encode()


def tokenizer_config() -> Seeds:
    """One template, and several under names."""
    yield (
        "one.json",
        json.dumps(
            {"chat_template": CHATML, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
        ).encode(),
    )
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": MACRO}]
    yield (
        "named.json",
        json.dumps({"chat_template": named, "pad_token": None, "eos_token": "</s>"}).encode(),
    )


def chat_messages() -> Seeds:
    """Messages as a list, and inside an object."""
    found = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi", "tool_calls": []},
    ]
    yield "list.json", json.dumps(found).encode()
    yield "object.json", json.dumps({"messages": found}).encode()


def logits_file() -> Seeds:
    """Logits by numpy's writer, as JSON and as words."""
    import numpy as np

    for kind in ("float32", "int16"):
        out = io.BytesIO()
        np.save(out, np.arange(6, dtype=kind).reshape(1, 6))
        yield f"{kind}.npy", out.getvalue()
    yield "list.json", b"[[1, 2.5, -Infinity, NaN]]"
    yield "words.txt", b"1.5, -2 nan\n3e4 inf"


def corpus_lines() -> Seeds:
    """Two records and an empty line."""
    yield (
        "two.jsonl",
        b'{"text": "The weather", "n": 1}\n\n{"text": "is nice", "meta": {"a": [1]}}\n',
    )


WRITERS: tuple[Callable[[], Seeds], ...] = (
    safetensors_header,
    safetensors_index,
    config,
    config_and_tensors,
    gguf_file,
    gguf_parts,
    adapter_config,
    ollama_manifest,
    kept_header,
    tokenizer_json,
    tokenizer_model,
    tekken,
    chat_template,
    tokenizer_config,
    chat_messages,
    logits_file,
    corpus_lines,
)


def main() -> None:
    """Every seed, under the name of its target."""
    for writer in WRITERS:
        folder = CORPUS / writer.__name__
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in writer():
            (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
