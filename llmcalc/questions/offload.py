"""llama.cpp's partial offload: the output and the last layers on the device, the rest in main memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmcalc.anatomy import Anatomy
from llmcalc.engines.cache import Cache
from llmcalc.formats.element import DType
from llmcalc.formats.file_type import Typed


@dataclass(frozen=True, slots=True)
class Split:
    """What lies on the device and what in main memory, weights and cache apart."""

    layers: int
    device_weights: int
    device_cache: int
    host_weights: int
    host_cache: int


def layer_weights(anatomy: Anatomy, kind: DType) -> tuple[dict[int, int], int, int]:
    """Bytes of each layer, of the output (head and final norm), and of the input table, in one format."""
    layers: dict[int, int] = {}
    output = table = 0
    tied = any(w.role == "head" and w.tied_to for w in anatomy.weights)
    for w in anatomy.weights:
        if w.tied_to or w.extra or w.buffer:
            continue
        size = kind.bytes_for(int(w.per_layer))
        if "{layer}" in w.name:
            for i in w.layers.indices:
                layers[i] = layers.get(i, 0) + size
        elif w.op == "lookup":
            table += size
            output += (
                size if tied and w.role == "embed.token" else 0
            )  # a tied head is a second copy on the device
        else:
            output += size
    return layers, output, table


def mixed_weights(tensors: Iterable[Typed]) -> tuple[dict[int, int], int, int]:
    """The same of a GGUF that is not there yet: by its file type, every tensor in its own format."""
    layers: dict[int, int] = {}
    output = table = head = 0
    for t in tensors:
        if "{layer}" in t.weight.name:
            layers[t.layer] = layers.get(t.layer, 0) + t.n_bytes
        elif t.role == "embed.token":
            table += t.n_bytes
        else:
            output += t.n_bytes
            head += t.role == "head"
    return layers, output + (0 if head else table), table


def header_weights(sizes: Mapping[str, int]) -> tuple[dict[int, int], int, int]:
    """The same from a GGUF's own table of tensors: name to bytes."""
    layers: dict[int, int] = {}
    output = table = 0
    for name, n in sizes.items():
        parts = name.split(".")
        if parts[0] == "blk" and parts[1].isdigit():
            layers[int(parts[1])] = layers.get(int(parts[1]), 0) + n
        elif parts[0] == "token_embd":
            table += n
        else:
            output += n
    if "output.weight" not in sizes:
        output += table
    return layers, output, table


def cache_by_layer(cache: Cache) -> dict[int, int]:
    """Bytes of each layer's cache and state."""
    out: dict[int, int] = {}
    for row in cache.rows:
        n = len(row.layers.indices)
        each = (int(row.kv_bytes) + int(row.state_bytes)) // n if n else 0
        for i in row.layers.indices:
            out[i] = out.get(i, 0) + each
    return out


def split(weights: tuple[dict[int, int], int, int], cache: dict[int, int], on_device: int) -> Split:
    """The output on the device, and as many of the last layers as ``on_device`` allows beside it.

    Source: ``i_gpu_start = max(n_layer + 1 - n_gpu_layers, 0)`` in llama-model.cpp of 2026; older versions put the
    output there last.
    """
    layers, output, table = weights
    order = sorted(layers)
    chosen = (
        set(order[len(order) - min(on_device - 1, len(order)) :]) if on_device > 1 else set[int]()
    )
    device = sum(layers[i] for i in chosen) + (output if on_device else 0)
    held = sum(cache.get(i, 0) for i in chosen)
    host = (
        sum(n for i, n in layers.items() if i not in chosen) + table + (0 if on_device else output)
    )
    return Split(min(on_device, len(order) + 1), device, held, host, sum(cache.values()) - held)


def most_layers(
    weights: tuple[dict[int, int], int, int], cache: dict[int, int], memory: int, working: int
) -> int:
    """The most layers that fit on a device of ``memory`` bytes beside its working memory."""
    best = 0
    for n in range(len(weights[0]) + 2):
        s = split(weights, cache, n)
        if s.device_weights + s.device_cache + working <= memory:
            best = n
    return best
