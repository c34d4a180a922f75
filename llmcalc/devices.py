"""Accelerators by name: memory, bandwidth, arithmetic, link, each figure with its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from llmcalc.errors import InputError

_FILE = Path(__file__).parent / "presets" / "devices" / "devices.json"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator.

    ``memory_bytes`` is nominal; ``visible_bytes`` what programs see of it, where that is known.
    """

    name: str
    memory_bytes: int
    visible_bytes: int
    visible_known: bool
    bandwidth: int | None
    flops: Mapping[str, int]
    link: int | None
    source: str
    unified: bool = False


@cache
def _table() -> dict[str, dict[str, Any]]:
    return json.loads(_FILE.read_text())  # type: ignore[no-any-return]


def names() -> list[str]:
    """Every accelerator that is known by name."""
    return list(_table())


def find(name: str) -> Device:
    """The accelerator of that name or alias; a typo gets the closest names."""
    import difflib

    table = _table()
    wanted = name.lower().replace(" ", "-").replace("_", "-")
    aliases = {alias: key for key, entry in table.items() for alias in entry.get("aliases", ())}
    key = wanted if wanted in table else aliases.get(wanted)
    if key is None:
        close = difflib.get_close_matches(wanted, [*table, *aliases], 4, 0.4)
        raise InputError(
            f"no device is called {name!r}",
            hint=(f"close: {', '.join(close)}; " if close else "")
            + "`llmcalc list devices` shows all",
        )
    return _device(key, table[key])


def _device(name: str, entry: dict[str, Any]) -> Device:
    flops = {
        k.removesuffix("_flop_per_s"): v
        for k, v in entry.items()
        if k.endswith("_flop_per_s") and v
    }
    visible = entry.get("visible_bytes") or entry.get("driver_bytes") or entry["memory_bytes"]
    known = "visible_bytes" in entry or "driver_bytes" in entry
    return Device(
        name=name,
        memory_bytes=entry["memory_bytes"],
        visible_bytes=visible,
        visible_known=known,
        bandwidth=entry["bandwidth_bytes_per_s"],
        flops=flops,
        link=entry["link_bytes_per_s"],
        source=entry["source"],
        unified=bool(entry.get("unified")),
    )


def of_memory(n_bytes: int) -> Device:
    """A device of which only the memory is known."""
    return Device(
        name="device",
        memory_bytes=n_bytes,
        visible_bytes=n_bytes,
        visible_known=True,
        bandwidth=None,
        flops={},
        link=None,
        source="--device-memory",
    )


def of_this_machine() -> tuple[Device, int]:
    """The machine's own GPUs as the NVIDIA driver lists them, and how many.

    Without one, its main memory.
    """
    import os
    import subprocess

    query = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        listed = (
            subprocess.run(query, capture_output=True, text=True, timeout=20, check=True)
            .stdout.strip()
            .splitlines()
        )
    except (OSError, subprocess.SubprocessError):
        listed = []
    if listed:
        name, _, mib = listed[0].rpartition(",")
        n_bytes = int(mib) * 2**20
        return Device(
            name=name.strip(),
            memory_bytes=n_bytes,
            visible_bytes=n_bytes,
            visible_known=True,
            bandwidth=None,
            flops={},
            link=None,
            source="nvidia-smi",
        ), len(listed)
    n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (
        Device(
            name="main memory",
            memory_bytes=n_bytes,
            visible_bytes=n_bytes,
            visible_known=True,
            bandwidth=None,
            flops={},
            link=None,
            source="the operating system",
            unified=True,
        ),
        1,
    )
