"""``llmcalc cache``: what is kept of the headers that came over the network.

Clears it, or bounds it.
"""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from llmcalc.cli.options.model import OutputOptions, bytes_if_given, takes
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.output.write import write
from llmcalc.errors import InputError
from llmcalc.sources import cache as kept
from llmcalc.units import exact, size


@takes
def cache(
    output: OutputOptions,
    clear: Annotated[bool, typer.Option("--clear", help="Remove everything.")] = False,
    most: Annotated[
        str | None,
        typer.Option("--max", help="Remove what was not read for longest, down to this: 100MB."),
    ] = None,
) -> None:
    """Headers from the hub that are kept on this machine: shows, clears or bounds them.

    Files that the hub's own client keeps are not touched. LLMCALC_CACHE_DIR says where headers are
    kept, and LLMCALC_CACHE_MAX how much of them at most.

    \b
    llmcalc cache
    llmcalc cache --max 100MB
    llmcalc cache --clear
    """
    if clear and most is not None:
        raise InputError("--clear and --max are two ways to make room")
    down_to = 0 if clear else bytes_if_given("--max", most)
    dropped = [] if down_to is None else kept.bound(down_to)
    found, now = kept.entries(), time.time()
    rows: list[dict[str, Any]] = [
        {"of": e.key, "bytes": e.n_bytes, "unused_s": max(int(now - e.used), 0)} for e in found
    ]
    columns = [
        Column("of", "header of"),
        Column("bytes", "bytes", exact, right=True),
        Column("unused_s", "last read", _ago, right=True),
    ]
    total = sum(e.n_bytes for e in found)
    shown = lambda n: f"{exact(n)} ({size(n, si=output.si)})"  # noqa: E731
    facts = [
        Fact("folder", str(kept.folder()), "kept in"),
        Fact("count", len(found), "headers", exact),
        Fact("bytes", total, "bytes", shown),
        Fact("limit", kept.limit(), "at most", shown),
        Fact("dropped", len(dropped), "removed now" if down_to is not None else None, exact),
        Fact("dropped_bytes", sum(e.n_bytes for e in dropped)),
    ]
    write(
        View(
            "cache/1",
            f"{exact(len(found))} headers kept, {size(total, si=output.si)}",
            columns,
            rows,
            facts,
        ),
        output,
    )


def _ago(seconds: int) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit} ago"
    return f"{seconds} s ago"
