"""Texts inside files of records: JSON Lines by the standard library, Parquet by pyarrow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from llmcalc.errors import InputError, UnavailableError, install
from llmcalc.text import shorten
from llmcalc.tokens.base import Tokenizer
from llmcalc.tokens.count import Counts, of_texts

BATCH = 1024


_RECORDS = (".jsonl", ".ndjson", ".parquet")


def is_corpus(path: Path | str) -> bool:
    """Whether a file holds records with texts in them."""
    return str(path).endswith(_RECORDS)


def count(
    tokenizer: Tokenizer,
    file: BinaryIO,
    field: str,
    special: str = "refuse",
    name: str = "the file",
) -> tuple[Counts, int]:
    """The tokens of one field of every record of an open file, and how many records there are."""
    total = Counts()
    n = 0
    batch: list[str] = []
    for text in texts(file, field, name):
        batch.append(text)
        n += 1
        if len(batch) == BATCH:
            total += of_texts(tokenizer, batch, special)
            batch = []
    return total + of_texts(tokenizer, batch, special), n


def texts(file: BinaryIO, field: str, name: str) -> Iterator[str]:
    """One field of every record of the file called ``name``, in order.

    A record without it is an InputError that names its line or row.
    """
    return _parquet(file, field, name) if name.endswith(".parquet") else _lines(file, field, name)


def _lines(file: BinaryIO, field: str, name: str) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError):
            raise InputError(f"{shorten(name)}, line {number}: not JSON") from None
        value = record.get(field) if isinstance(record, dict) else None
        if not isinstance(value, str):
            there = type(record).__name__
            if isinstance(record, dict):
                there = ", ".join(list(record)[:6])
            raise InputError(
                f"{shorten(name)}, line {number}: no text under {field!r}",
                hint=f"--field: {shorten(there)}",
            )
        yield value


def _parquet(opened: BinaryIO, field: str, name: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UnavailableError("reading Parquet needs pyarrow", hint=install("corpora")) from None
    try:
        with parquet.ParquetFile(opened) as file:
            if field not in file.schema_arrow.names:
                raise InputError(
                    f"{shorten(name)} has no column {field!r}",
                    hint=f"--field: {shorten(', '.join(file.schema_arrow.names[:6]))}",
                )
            for batch in file.iter_batches(BATCH, columns=[field]):
                for value in batch.column(0).to_pylist():
                    if not isinstance(value, str):
                        raise InputError(
                            f"{shorten(name)}: the column {field!r} holds {type(value).__name__}"
                        )
                    yield value
    except (ArrowException, OSError) as error:
        raise InputError(
            f"{shorten(name)} cannot be read as Parquet: {shorten(str(error), 80)}"
        ) from None
