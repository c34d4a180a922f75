"""The pictures of the commands' answers, built from their rows when ``--plot`` asks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from llmcalc.cli.output.picture import Bars, Bits, Curves, Heat, Stack, plain
from llmcalc.dims import Dim
from llmcalc.units import count, exact, percent, size

if TYPE_CHECKING:
    from llmcalc.engines.cache import Cache, Load

Row = Mapping[str, Any]
MOST_BARS = 40


def by_bytes(si: bool) -> Callable[[float], str]:
    """A number of bytes as it is printed elsewhere."""
    return lambda n: size(round(n), si=si)


def big(n: float) -> str:
    """A count with its suffix."""
    return count(round(n))


def as_bars(
    title: str, rows: Sequence[Row], label: str, value: str, unit: str, say: Callable[[float], str]
) -> Bars:
    """A bar for every row that holds something."""
    found = [(str(row[label]), float(row[value])) for row in rows if row.get(value)]
    return Bars(title, [name for name, _ in found], [(unit, [n for _, n in found])], unit, say)


def fewer(bars: Bars) -> Bars:
    """The largest bars in their order, and the sum of the others: for what adds up."""
    values = bars.series[0][1]
    if len(values) <= MOST_BARS:
        return bars
    largest = sorted(range(len(values)), key=lambda i: -values[i])[: MOST_BARS - 1]
    kept = sorted(largest)
    labels = [*(bars.labels[i] for i in kept), f"{len(values) - len(kept)} others"]
    sizes = [*(values[i] for i in kept), sum(values) - sum(values[i] for i in kept)]
    return replace(bars, labels=labels, series=[(bars.series[0][0], sizes)])


def shares(title: str, rows: Sequence[Row], label: str) -> Bars:
    """Parameters by part, each with its share."""
    total = sum(int(row["params"]) for row in rows) or 1
    return fewer(
        as_bars(
            title,
            rows,
            label,
            "params",
            "parameters",
            lambda n: f"{big(n)}  {percent(round(n), total)}",
        )
    )


def cache_growth(
    title: str,
    function: Callable[[Any, Load], Cache],
    anatomy: Any,
    load: Load,
    longest: int,
    mha: int,
    si: bool,
) -> Curves:
    """The cache against the context, up to the longest that the model was made for.

    Plain attention beside it.
    """
    context = int(load.context)
    most = max(longest, context)
    at = sorted({max(1, most * i // 48) for i in range(49)} | {context})
    kept = [
        (float(c), float(int(function(anatomy, replace(load, context=Dim(c, "context"))).kv_bytes)))
        for c in at
    ]
    lines = [("as it is kept", kept)]
    if mha and mha > 1.005 * dict(kept)[context]:
        lines.append(("plain multi-head attention", [(float(c), mha * c / context) for c in at]))
    here = (
        f"{exact(context)} tokens: {size(round(dict(kept)[context]), si=si)}",
        float(context),
        dict(kept)[context],
    )
    return Curves(
        title=title,
        x="tokens of the sequence",
        y="cache",
        lines=lines,
        points=[here],
        say_x=lambda x: exact(round(x)),
        say_y=by_bytes(si),
        binary=not si,
    )


Held = Sequence[tuple[str, int]]


def places(title: str, bars: Sequence[tuple[str, Held]], limit: tuple[str, int], si: bool) -> Stack:
    """What lies in each place, or is held at each moment, beside what there is room for."""
    drawn = [(place, [(name, float(n)) for name, n in parts if n]) for place, parts in bars]
    return Stack(
        title=title,
        bars=drawn,
        unit="bytes",
        say=by_bytes(si),
        limit=(limit[0], float(limit[1])),
        binary=not si,
    )


def roofline(
    title: str, flop_per_s: float, bytes_per_s: float, points: Sequence[tuple[str, float, float]]
) -> Curves:
    """The roof: FLOP/s at most against FLOP per byte; and where each step stands under it."""
    ridge = flop_per_s / bytes_per_s
    xs = [x for _, x, _ in points]
    low, high = min([*xs, ridge]) / 4, max([*xs, ridge]) * 4
    roof = [(low, low * bytes_per_s), (ridge, flop_per_s), (high, flop_per_s)]
    lines = [("bound: FLOP/byte · bandwidth, at most the peak", roof)]
    return Curves(
        title=title,
        x="FLOP per byte",
        y="FLOP/s",
        lines=lines,
        points=points,
        say_x=plain,
        say_y=_rate,
        log_x=True,
        log_y=True,
    )


def _rate(x: float) -> str:
    power = min(max(math.floor(math.log10(x) / 3), 0), 6) if x > 0 else 0
    return f"{x / 1000**power:.4g} {('', 'K', 'M', 'G', 'T', 'P', 'E')[power]}FLOP/s"


def formats(title: str, rows: Sequence[Row]) -> Bits:
    """The bits of every format that has sign, exponent and mantissa."""
    return Bits(
        title,
        [
            (
                str(row["dtype"]),
                [(part, int(row[part] or 0)) for part in ("sign", "exponent", "mantissa")],
            )
            for row in rows
            if row.get("mantissa") is not None
        ],
    )


def weights(title: str, numbers: Sequence[Sequence[float]]) -> Heat:
    """Attention weights of a calculation by hand."""
    names = [str(i) for i in range(len(numbers[0]))]
    rows = [f"query {i + len(numbers[0]) - len(numbers)}" for i in range(len(numbers))]
    return Heat(
        title=title, rows=rows, columns=names, numbers=numbers, row_name="query", column_name="key"
    )
