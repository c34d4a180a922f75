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
    found = [row for row in rows if row.get(value)]
    labels = [str(row[label]) for row in found]
    values = [float(row[value]) for row in found]
    return Bars(title, labels, [(unit, values)], unit, say)


def fewer(bars: Bars) -> Bars:
    """The largest bars in their order, and the sum of the others: for what adds up."""
    unit, values = bars.series[0]
    if len(values) <= MOST_BARS:
        return bars
    falling = sorted(range(len(values)), key=lambda i: -values[i])
    kept = sorted(falling[: MOST_BARS - 1])
    labels = [bars.labels[i] for i in kept]
    sizes = [values[i] for i in kept]
    labels.append(f"{len(values) - len(kept)} others")
    sizes.append(sum(values) - sum(sizes))
    return replace(bars, labels=labels, series=[(unit, sizes)])


def shares(title: str, rows: Sequence[Row], label: str) -> Bars:
    """Parameters by part, each with its share."""
    total = sum(int(row["params"]) for row in rows) or 1

    def say(n: float) -> str:
        return f"{big(n)}  {percent(round(n), total)}"

    return fewer(as_bars(title, rows, label, "params", "parameters", say))


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

    def kept(tokens: int) -> float:
        asked = replace(load, context=Dim(tokens, "context"))
        return float(int(function(anatomy, asked).kv_bytes))

    curve = [(float(tokens), kept(tokens)) for tokens in at]
    here = dict(curve)[context]
    lines = [("as it is kept", curve)]
    # lines that lie on one another say nothing
    if mha and mha > 1.005 * here:
        plainly = [(float(tokens), mha * tokens / context) for tokens in at]
        lines.append(("plain multi-head attention", plainly))
    said = f"{exact(context)} tokens: {size(round(here), si=si)}"
    return Curves(
        title=title,
        x="tokens of the sequence",
        y="cache",
        lines=lines,
        points=[(said, float(context), here)],
        say_x=lambda x: exact(round(x)),
        say_y=by_bytes(si),
        binary=not si,
    )


Held = Sequence[tuple[str, int]]


def places(title: str, bars: Sequence[tuple[str, Held]], limit: tuple[str, int], si: bool) -> Stack:
    """What lies in each place, or is held at each moment, beside what there is room for."""
    drawn = [(place, [(name, float(n)) for name, n in parts if n]) for place, parts in bars]
    name, room = limit
    return Stack(
        title=title,
        bars=drawn,
        unit="bytes",
        say=by_bytes(si),
        limit=(name, float(room)),
        binary=not si,
    )


def roofline(
    title: str, flop_per_s: float, bytes_per_s: float, points: Sequence[tuple[str, float, float]]
) -> Curves:
    """The roof: FLOP/s at most against FLOP per byte; and where each step stands under it."""
    ridge = flop_per_s / bytes_per_s
    xs = [ridge, *(x for _, x, _ in points)]
    low, high = min(xs) / 4, max(xs) * 4
    roof = [(low, low * bytes_per_s), (ridge, flop_per_s), (high, flop_per_s)]
    return Curves(
        title=title,
        x="FLOP per byte",
        y="FLOP/s",
        lines=[("bound: FLOP/byte · bandwidth, at most the peak", roof)],
        points=points,
        say_x=plain,
        say_y=_rate,
        log_x=True,
        log_y=True,
    )


def _rate(x: float) -> str:
    thousands = math.floor(math.log10(x) / 3) if x > 0 else 0
    power = min(max(thousands, 0), 6)
    suffix = ("", "K", "M", "G", "T", "P", "E")[power]
    return f"{x / 1000**power:.4g} {suffix}FLOP/s"


def formats(title: str, rows: Sequence[Row]) -> Bits:
    """The bits of every format that has sign, exponent and mantissa."""
    found = []
    for row in rows:
        if row.get("mantissa") is not None:
            fields = [(part, int(row[part] or 0)) for part in ("sign", "exponent", "mantissa")]
            found.append((str(row["dtype"]), fields))
    return Bits(title, found)


def weights(title: str, numbers: Sequence[Sequence[float]]) -> Heat:
    """Attention weights of a calculation by hand."""
    n_queries, n_keys = len(numbers), len(numbers[0])
    first = n_keys - n_queries  # queries are the last of the tokens
    return Heat(
        title=title,
        rows=[f"query {first + i}" for i in range(n_queries)],
        columns=[str(i) for i in range(n_keys)],
        numbers=numbers,
        row_name="query",
        column_name="key",
    )
