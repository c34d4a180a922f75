"""llama.cpp's partial offload: the output and the last layers on the device, the rest in main
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from llmcalc.engines.cache import Cache
from llmcalc.formats.stored import Stored


@dataclass(frozen=True, slots=True)
class Split:
    """What lies on the device and what in main memory, weights and cache apart."""

    layers: int
    device_weights: int
    device_cache: int
    host_weights: int
    host_cache: int


def layer_weights(pieces: Iterable[Stored]) -> tuple[dict[int, int], int, int]:
    """Bytes of each layer, of the output (head and final norm), and of the input table.

    A tied head is a second copy of the table, on the device.
    """
    layers: dict[int, int] = {}
    output = table = head = 0
    for piece in pieces:
        n_bytes = int(piece.n_bytes)
        if piece.weight.in_stack:
            each = n_bytes // len(piece.layers.indices)
            for i in piece.layers.indices:
                layers[i] = layers.get(i, 0) + each
        elif piece.role == "embed.token":
            table += n_bytes
        else:
            output += n_bytes
            head += piece.role == "head"
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

    Source: ``i_gpu_start = max(n_layer + 1 - n_gpu_layers, 0)`` in llama-model.cpp of 2026; older
    versions put the output there last.
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
