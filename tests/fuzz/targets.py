"""One function per reader of untrusted files: bytes in; a result or an LlmcalcError out, and
nothing else.
"""

from __future__ import annotations

import atexit
import hashlib
import io
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache as once
from pathlib import Path
from typing import Any
from unittest.mock import patch

from llmcalc.cli.check import dtypes_by_role
from llmcalc.cli.options.load import EngineOptions, LoadOptions, build_load
from llmcalc.cli.params.adapter import of_adapter
from llmcalc.cli.params.table import absent_tensors, assumptions, quantised, stored_facts
from llmcalc.engines import ENGINES, choose
from llmcalc.errors import LlmcalcError, UnavailableError
from llmcalc.formats.scheme import SCHEMES
from llmcalc.formats.stored import named, stored, stored_bytes
from llmcalc.questions import params
from llmcalc.questions.kvcache import mha_bytes, scale_bytes
from llmcalc.questions.weights import checkpoint, compared, format_of
from llmcalc.sources import (
    Model,
    adapters,
    cache,
    gguf,
    hub,
    json_file,
    local,
    logits,
    resolve,
    safetensors,
)
from llmcalc.sources.header import Header, is_buffer, is_packed
from llmcalc.tokens import chat, corpus, find, rendering
from llmcalc.tokens.base import SPECIAL, Tokenizer
from tests.fuzz.limits import renew

Target = Callable[[bytes], None]
SHARD = b"\n--shard--\n"
"""Stands between an index and its shards, which are called 0.safetensors, 1.safetensors, ..."""
TEXTS = ("", "The weather is  nice\n", "<s>[INST] Größe 日本 🙂 \u202e\0 1234567 </s>", "a" * 300)
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": "Hi",
        "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}],
    },
    {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
]
LINE = 2000
"""Characters of the longest error that is still a line."""
OLDER = ("vllm@0.10", "ollama@0.11", "transformers@4.40")


@once
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz"))
    atexit.register(shutil.rmtree, folder, True)
    return folder


def placed(data: bytes, name: str) -> Path:
    """The bytes as a file of that name, new each time, so that a mapping of the last one keeps what
    it had.
    """
    path = _folder() / name
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def safetensors_header(data: bytes) -> None:
    """The header of one file, and all that is said of a header alone."""
    _described(safetensors.parse(io.BytesIO(data), len(data), "f.safetensors"))


def safetensors_index(data: bytes) -> None:
    """An index and the shards behind it; none of them may lie outside the index's own directory."""
    first, *shards = data.split(SHARD)
    path = placed(first, "model.safetensors.index.json")
    for number in range(3):
        (path.parent / f"{number}.safetensors").unlink(missing_ok=True)
    for number, shard in enumerate(shards[:3]):
        placed(shard, f"{number}.safetensors")
    index = safetensors.open_index(path)
    for shard in index.shards.values():
        assert os.path.normpath(shard).startswith(f"{path.parent}{os.sep}"), shard
    header = safetensors.read_shards(index)
    _described(header)
    absent_tensors(header)


def gguf_file(data: bytes) -> None:
    """A GGUF's metadata and tensors, its config, and what can be computed of that; then what its
    tokenizer keeps.
    """
    path = placed(data, "m.gguf")
    with suppress(LlmcalcError):
        gguf.read_vocabulary(path)
    header = gguf.parse(data, "m.gguf")
    _described(header)
    model = Model("m.gguf", "GGUF file m.gguf", gguf.to_config(header), header, folder=path.parent)
    if model.raw is not None:
        _each(lambda: _counted(model), lambda: _compared(model, header))
    _each(lambda: chat.template_of(model), lambda: find.of_model(model))


def gguf_beginning(data: bytes) -> None:
    """A GGUF that arrives bit by bit: the answer is that of the whole, and never is more asked for
    than it has.
    """
    n, more = 32, True
    while more:
        try:
            header, _ = gguf.parse_beginning(data[:n], len(data), "m.gguf")
            more = False
        except gguf.MoreNeeded as wanted:
            assert n < wanted.n_bytes <= len(data), (n, wanted.n_bytes, len(data))
            n = min(max(wanted.n_bytes, 2 * n), len(data))
    assert repr(header) == repr(gguf.parse(data, "m.gguf"))  # NaN is not equal to itself


def gguf_parts(data: bytes) -> None:
    """A GGUF that is split into several files."""
    shards = data.split(SHARD)[:3]
    for number, shard in enumerate(shards):
        placed(shard, f"m-{number + 1:05}-of-{len(shards):05}.gguf")
    _described(gguf.read_all(_folder() / f"m-00001-of-{len(shards):05}.gguf"))


def adapter_config(data: bytes) -> None:
    """An adapter_config.json, and what it adds to its base, which is a preset or not to be had."""
    adapter = adapters.read(placed(data, "adapter_config.json"))
    model = Model("a", "adapter a", None, Header("safetensors", {}), adapter=adapter)
    offline = UnavailableError("no network here")
    with (
        patch.object(hub, "file", side_effect=offline),
        patch.object(hub, "files", side_effect=offline),
    ):
        of_adapter(model, adapter, False)


def ollama_manifest(data: bytes) -> None:
    """A manifest of Ollama's; the blob that it names must lie in its folder of blobs."""
    folder = _folder() / "ollama"
    blob = folder / "blobs" / f"sha256-{'0' * 64}"
    path = folder / "manifests" / "registry.ollama.ai" / "library" / "m" / "latest"
    for place in (blob, path):
        place.parent.mkdir(parents=True, exist_ok=True)
    blob.touch()
    path.write_bytes(data)
    with patch.dict(os.environ, {"OLLAMA_MODELS": str(folder)}):
        assert local.find("ollama", "m") == blob


def kept_header(data: bytes) -> None:
    """An entry of the cache of headers, with the hash that it should have."""
    with patch.dict(os.environ, {"LLMCALC_CACHE_DIR": str(_folder() / "kept")}):
        key = data[4 : 4 + int.from_bytes(data[:4], "little")][:100].decode("utf-8", "replace")
        path = cache._path(key)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(cache._MAGIC + hashlib.sha256(data).digest() + data)
        cache.entries()
        cache.get(key)


def config(data: bytes) -> None:
    """A config.json, its parts, counts and formulas, and its cache under every engine."""
    _counted(resolve(str(placed(data, "config.json"))))


def config_formats(data: bytes) -> None:
    """A config.json, and its weights in the formats that it names or that a user may ask for."""
    model = resolve(str(placed(data, "config.json")))
    anatomy = model.anatomy
    forms = (*SCHEMES, "q4_k_m", "iq2_m")
    _each(
        lambda: stored_bytes(anatomy, format_of(model), 2),
        *(lambda f=form: stored(anatomy, named(f, model.wide)) for form in forms),
    )


def config_and_tensors(data: bytes) -> None:
    """A config.json beside a checkpoint that may hold what it promises."""
    text, _, tensors_ = data.partition(SHARD)
    raw = json_file.read_json(placed(text, "config.json"))
    header = safetensors.parse(io.BytesIO(tensors_), len(tensors_), "m.safetensors")
    _compared(Model("m", "directory m", raw, header), header)


def tokenizer_json(data: bytes) -> None:
    """A tokenizer.json of the tokenizers package."""
    _used(find.of_path(placed(data, "tokenizer.json")))


def tokenizer_model(data: bytes) -> None:
    """A SentencePiece model."""
    _used(find.of_path(placed(data, "tokenizer.model")))


def gguf_vocabulary(data: bytes) -> None:
    """The tokenizer inside a GGUF."""
    _used(find.of_path(placed(data, "v.gguf")))


def tekken(data: bytes) -> None:
    """Mistral's tekken.json."""
    _used(find.of_path(placed(data, "tekken.json")))


def chat_template(data: bytes) -> None:
    """A Jinja template, as chat_template.jinja holds it, in the process of its own that it gets."""
    chat.render(
        data.decode("utf-8", "replace"),
        chat.Conversation(MESSAGES),
        {"bos_token": "<s>", "eos_token": "</s>"},
    )


def tokenizer_config(data: bytes) -> None:
    """A tokenizer_config.json with its template and special tokens."""
    path = placed(data, "tokenizer_config.json")
    template, names = chat.template_of(Model("m", "directory m", {}, folder=path.parent))
    with patch.object(chat.subprocess, "run", _rendered_here):
        chat.render(
            "{{ bos_token }}{{ template }}",
            chat.Conversation(MESSAGES),
            {**names, "template": template},
        )


def chat_messages(data: bytes) -> None:
    """A file of messages, under a template that looks at all of them."""
    found = chat.conversation(placed(data, "messages.json"))
    template = (
        "{% for m in messages %}{{ m.role + m['content'] | trim }}{{ m | tojson }}{% endfor %}"
    )
    with patch.object(chat.subprocess, "run", _rendered_here):
        chat.render(template, found, {})


def _rendered_here(
    command: list[str], *, input: bytes, **_: Any
) -> subprocess.CompletedProcess[bytes]:
    """What the process of a template does, without the process, for templates that are known to do
    little.
    """
    try:
        text, unread = rendering.rendered(json.loads(input))
        answer: dict[str, Any] = {"text": text, "unread": unread}
    except Exception as error:
        answer = {"refused": str(error)}
    return subprocess.CompletedProcess(command, 0, json.dumps(answer).encode(), b"")


def json_object(data: bytes) -> None:
    """Any JSON file."""
    json_file.read_json(placed(data, "f.json"))


def logits_file(data: bytes) -> None:
    """Logits as NPY, safetensors, or text, by what the file begins with."""
    magic = data.startswith((b"\x93NUMPY", b"PK"))
    suffix = "npy" if magic else "safetensors" if data[8:9] == b"{" else "json"
    logits.read(str(placed(data, f"logits.{suffix}")))


def corpus_lines(data: bytes) -> None:
    """Texts in JSON Lines."""
    list(corpus.texts(io.BytesIO(data), "text", "c.jsonl"))


def tensor_values(data: bytes) -> None:
    """The numbers of a checkpoint's tensors, as they are read row by row."""
    from llmcalc.values.read import chunks

    path = placed(data, "t.gguf" if data.startswith(b"GGUF") else "t.safetensors")
    header = gguf.read(path) if path.suffix == ".gguf" else safetensors.read(path)
    _each(
        *(
            lambda n=name: [None for _ in chunks(path.parent, header, n)]
            for name in list(header.tensors)[:8]
        )
    )


def _each(*steps: Callable[[], object]) -> None:
    """Every step, whatever the others answer."""
    for step in steps:
        renew()
        with suppress(LlmcalcError):
            step()


def _described(header: Header) -> None:
    """What is said of a header alone."""
    stored_facts(header, False)
    [(is_buffer(name, t), is_packed(t)) for name, t in header.tensors.items()]


def _counted(model: Model) -> None:
    """What is computed of a config: parts, groups, formulas, caches."""
    anatomy = model.anatomy
    assert all(
        isinstance(n, int) and n >= 0
        for w in anatomy.weights
        for n in (*w.shape, w.layers.count, w.experts)
    )
    assert all(
        n >= 0
        for m in anatomy.mixers
        for n in (m.n_heads, m.d_qk, m.d_v, m.keys, m.values, m.window or 0)
    )
    assumptions(model)
    quantised(model)
    counts = (
        params.parameters,
        params.stored,
        params.active,
        params.active_without_embedding,
        params.embeddings,
    )
    _each(
        lambda: [part.params.formula for part in params.by_part(anatomy)],
        lambda: [part.params.sizes for part in params.by_layer(anatomy)],
        *(lambda c=count: c(anatomy) for count in (*counts, params.n_tensors, params.positions)),
        *(lambda e=engine: _cached(model, e, 1) for engine in ENGINES),
        *(lambda e=engine: _cached(model, e, 2) for engine in (*ENGINES, *OLDER)),
    )


def _cached(model: Model, engine: str, tp: int) -> None:
    """The cache under one engine at the model's own longest context, or 4096 tokens."""
    ctx = None if model.longest_context is not None else "4096"
    load = build_load(model, LoadOptions(ctx=ctx, engine=engine, tp=tp, batch="2"), EngineOptions())
    answer = choose(engine).rules.cache(model.anatomy, load)
    if tp == 1:
        str((answer.kv_bytes.formula, answer.kv_bytes.with_numbers))
    assert answer.kv_bytes >= 0 and answer.per_token >= 0 and answer.state_bytes >= 0
    mha_bytes(model.anatomy, load)
    scale_bytes(model.anatomy, load)


def _compared(model: Model, header: Header) -> None:
    dtypes_by_role(compared(model, header), header)
    checkpoint(model, header)


def _used(tokenizer: Tokenizer) -> None:
    """Texts to ids and back, in every way."""
    n = tokenizer.n_vocab
    for text in TEXTS:
        for special in SPECIAL:
            for add in (False, True):
                _each(lambda t=text, s=special, a=add: tokenizer.decode(tokenizer.encode(t, s, a)))
    _each(lambda: tokenizer.encode_batch(TEXTS, "text"))
    _each(*(lambda i=i: tokenizer.piece(i) for i in (-1, 0, 1, 2, 3, n // 2, n - 1, n)))


TARGETS: dict[str, Target] = {
    function.__name__: function
    for function in (
        safetensors_header,
        safetensors_index,
        gguf_file,
        gguf_beginning,
        gguf_parts,
        adapter_config,
        ollama_manifest,
        kept_header,
        config,
        config_formats,
        config_and_tensors,
        tokenizer_json,
        tokenizer_model,
        gguf_vocabulary,
        tekken,
        chat_template,
        tokenizer_config,
        chat_messages,
        json_object,
        logits_file,
        corpus_lines,
        tensor_values,
    )
}


def answer(name: str, data: bytes) -> str:
    """What a target says to some bytes: "read", or the error that a user would see, which is one
    line.
    """
    try:
        TARGETS[name](data)
    except LlmcalcError as error:
        said = f"{error} {error.hint or ''}"
        assert len(said) < LINE and "\n" not in said, (
            f"an error of {len(said)} characters: {said[:400]!r}"
        )
        return said
    return "read"
