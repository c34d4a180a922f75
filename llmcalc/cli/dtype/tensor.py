"""``llmcalc dtype --tensor``: real weights, what they are and what every format makes of them."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmcalc.cli.output.picture import Histogram
from llmcalc.cli.output.progress import Progress
from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.errors import InputError, UnavailableError
from llmcalc.formats.block import find
from llmcalc.formats.element import dtype, find_dtype
from llmcalc.formats.floats import FLOATS
from llmcalc.sources import Model, resolve
from llmcalc.sources.header import Header
from llmcalc.text import safe, shorten
from llmcalc.units import exact

if TYPE_CHECKING:
    from llmcalc.values.measure import Detail, Loss, Summary, Trip

_SHADES = " ▁▂▃▄▅▆▇█"


def of_tensor(text: str, form: str | None) -> View:
    """One tensor through every format, or every tensor of a file."""
    path, name = _split(text)
    found = resolve(path)
    if found.fetch is not None:
        raise UnavailableError(
            f"the weights of {found.name} are not here", hint="download a file of it and name that"
        )
    if found.header is None or found.folder is None:
        raise InputError(
            f"{shorten(path)} holds no tensors",
            hint="a .safetensors or .gguf file, or their directory",
        )
    chosen = _format(form)
    if name is None and len(found.header.tensors) == 1:
        name = next(iter(found.header.tensors))
    if name is None:
        return _file(found, found.header, found.folder, chosen)
    _known(found.header, name)
    return _one(found.header, found.folder, name, chosen)


def _split(text: str) -> tuple[str, str | None]:
    """A path, and after its last colon the name of a tensor."""
    if Path(text).exists() or ":" not in text:
        return text, None
    path, _, name = text.rpartition(":")
    return path, name


def _format(form: str | None) -> str | None:
    """A format's own name in the list of round trips."""
    if form is None:
        return None
    block, known = find(form), find_dtype(form)
    if block is not None:
        return block.name
    if known is None and form.lower() not in FLOATS:
        dtype(form)
    return known.name if known is not None else form.lower()


def _known(header: Header, name: str) -> None:
    if name in header.tensors:
        return
    close = difflib.get_close_matches(name, header.tensors, 3, 0.3)
    raise InputError(
        f"there is no tensor {safe(shorten(name))!r} among {len(header.tensors)}",
        hint=f"nearest: {', '.join(safe(shorten(c)) for c in close)}" if close else None,
    )


def _counted(folder: Path, header: Header, name: str, progress: Progress) -> Iterator[Any]:
    from llmcalc.values.read import chunks

    stored = header.tensors[name]
    done = 0
    for rows in chunks(folder, header, name):
        yield rows
        done += rows.size * stored.n_bytes // max(stored.elements, 1)
        progress.tell(done)
    progress.done(stored.n_bytes)


def _least(form: str) -> float:
    return float(FLOATS[form].smallest_normal) if form in FLOATS else 0.0


def _measured(
    header: Header, folder: Path, name: str, trips: list[tuple[str, Trip]], progress: Progress
) -> tuple[Summary, Detail]:
    from llmcalc.values.measure import detail, summarise

    stored = header.tensors[name]
    source: Callable[[], Iterator[Any]] = partial(_counted, folder, header, name, progress)
    summary = summarise(source, _least(stored.dtype))
    return summary, detail(source, summary, trips)


def _one(header: Header, folder: Path, name: str, form: str | None) -> View:
    from llmcalc.values.read import check, rows_and_columns
    from llmcalc.values.round_trips import trips

    stored = header.tensors[name]
    check(name, stored)
    width = rows_and_columns(stored)[1]
    chosen = trips(width, form)
    if not chosen:
        raise InputError(f"rows of {width} are no whole number of {form} blocks")
    progress = Progress(2 * stored.n_bytes)
    summary, found = _measured(
        header, folder, name, [(f"{a}|{b}", t) for a, b, _, t in chosen], progress
    )
    progress.end()
    rows = []
    for key, way, bits, _ in chosen:
        loss = found.losses[f"{key}|{way}"]
        rows.append(
            {
                "dtype": key,
                "scaling": way,
                "bits_per_weight": bits,
                "max_error": loss.largest,
                "mean_error": loss.mean(summary),
                "snr_db": loss.snr(summary),
                "clipped": loss.clipped,
                "flushed": loss.flushed,
            }
        )
    columns = [
        Column("dtype", "format"),
        Column("scaling", "scale"),
        Column("bits_per_weight", "bits/weight", lambda b: f"{b:.6g}", right=True),
        Column("max_error", "largest error", _short, right=True),
        Column("mean_error", "mean error", _short, right=True),
        Column("snr_db", "SNR dB", lambda s: "-" if s is None else f"{s:.2f}", right=True),
        Column("clipped", "clipped", exact, right=True),
        Column("flushed", "became 0", exact, right=True),
    ]
    title = f"{safe(shorten(name))}: {list(stored.shape)} {stored.dtype}"
    notes = [
        *header.notes,
        "round to nearest; the writers' own searches for better scales are not run",
    ]
    drawn = partial(
        Histogram, title, [float(e) for e in found.edges], [int(c) for c in found.counts]
    )
    return View(
        kind="dtype/1",
        title=title,
        columns=columns,
        rows=rows,
        facts=_facts(summary, found),
        notes=notes,
        picture=drawn,
    )


def _facts(s: Summary, found: Detail) -> list[Fact]:
    counts = [int(c) for c in found.counts]
    facts = [
        Fact("elements", s.elements, "elements", exact),
        Fact("min", s.low if s.finite else None, "smallest", _short),
        Fact("max", s.high if s.finite else None, "largest", _short),
        Fact("mean", s.mean, "mean", _short),
        Fact("std", s.std, "standard deviation", _short),
        Fact("zeros", s.zeros, "zeros", exact),
        Fact("subnormal", s.subnormal, "subnormal", exact),
        Fact("outliers", found.outliers, "beyond 6 standard deviations", exact),
        Fact("nan", s.nan, "NaN, left out" if s.nan else None, exact),
        Fact("inf", s.inf, "infinite, left out" if s.inf else None, exact),
        Fact("histogram", {"edges": [float(e) for e in found.edges], "counts": counts}),
        Fact("picture", _picture(counts), "smallest to largest, log"),
    ]
    if s.finite and not s.largest:
        facts.append(Fact("all_zero", True, "every number is 0"))
    return facts


def _picture(counts: list[int]) -> str:
    """A histogram in one line: the height of a bar is the logarithm of its count."""
    top = max(counts).bit_length()
    return "".join(_SHADES[-(-8 * c.bit_length() // top) if top else 0] for c in counts)


def _file(found: Model, header: Header, folder: Path, form: str | None) -> View:
    from llmcalc.values.read import rows_and_columns
    from llmcalc.values.round_trips import trips

    names = [n for n, t in header.tensors.items() if _readable(t.dtype) and t.elements]
    if not names:
        raise InputError(f"{found.name} holds no tensor of floats")
    progress = Progress(2 * sum(header.tensors[n].n_bytes for n in names))
    rows = []
    ways: set[str] = set()
    for name in names:
        stored = header.tensors[name]
        chosen = trips(rows_and_columns(stored)[1], form)[:1] if form is not None else []
        ways.update(way for _, way, _, _ in chosen)
        summary, detail = _measured(
            header, folder, name, [(a, t) for a, _, _, t in chosen], progress
        )
        loss = detail.losses.get(form or "")
        rows.append(
            {
                "name": name,
                "dtype": stored.dtype,
                "shape": list(stored.shape),
                "min": summary.low if summary.finite else None,
                "max": summary.high if summary.finite else None,
                "mean": summary.mean,
                "std": summary.std,
                "zeros": summary.zeros,
                "not_finite": summary.nan + summary.inf,
                "outliers": detail.outliers,
                **({} if form is None else _losses(loss, summary)),
            }
        )
    progress.end()
    columns = [
        Column("name", "tensor"),
        Column("dtype", "dtype"),
        Column("shape", "shape"),
        *(Column(k, k, _short, right=True) for k in ("min", "max", "mean", "std")),
        Column("zeros", "zeros", exact, right=True),
        Column("outliers", "over 6σ", exact, right=True),
        Column("not_finite", "NaN, inf", exact, right=True),
    ]
    if form is not None:
        columns.append(Column("max_error", f"largest error in {form}", _short, right=True))
        columns.append(
            Column("snr_db", "SNR dB", lambda s: "-" if s is None else f"{s:.2f}", right=True)
        )
    skipped = len(header.tensors) - len(names)
    notes = [
        *header.notes,
        *([f"{skipped} tensors hold no floats, or nothing, and are left out"] if skipped else []),
    ]
    if ways:
        notes.append(f"errors in {form}: {', '.join(sorted(ways))}; round to nearest")
    return View(
        kind="dtype/1",
        title=f"{found.name}: {len(names)} tensors",
        columns=columns,
        rows=rows,
        notes=notes,
    )


def _losses(loss: Loss | None, summary: Summary) -> dict[str, float | None]:
    """What a format loses; nothing is said where its blocks do not divide a row."""
    if loss is None:
        return {"max_error": None, "snr_db": None}
    return {"max_error": loss.largest, "snr_db": loss.snr(summary)}


def _readable(form: str) -> bool:
    return (form in FLOATS and dtype(form).block == 1) or dtype(form).block > 4


def _short(x: float | None) -> str:
    return "-" if x is None else f"{x:.6g}"
