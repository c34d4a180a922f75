"""Values that no honest file holds, and changes to JSON that put them where a reader looks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

WHOLE = (
    0,
    1,
    2,
    3,
    7,
    64,
    10_000,
    10_001,
    99_999,
    2**31,
    2**32,
    2**40,
    2**63 - 1,
    2**63,
    2**64,
    10**30,
    10**4000,
)
NUMBERS: tuple[Any, ...] = (*WHOLE, *(-n for n in WHOLE[1:]), 0.5, 2.0, -0.0, 1e308, 5e-324)
NUMBERS = (*NUMBERS, float("nan"), float("inf"), float("-inf"))
TEXTS = (
    "",
    " ",
    "0",
    "768",
    "null",
    "auto",
    "\0",
    "\x1b[31m",
    "\u202etxt",
    "\ud800",
    "\ufeff",
    "\U0001f642",
    "a" * 5000,
)
TEXTS = (
    *TEXTS,
    "../..",
    "/etc/passwd",
    "C:\\x",
    "{layer}",
    "{expert}",
    "%s",
    "{0}",
    "__class__",
    "llama",
    "bfloat16",
)
PLAIN: tuple[Any, ...] = (None, True, False)


def nested(depth: int, of_lists: bool = True) -> Any:
    """A value inside that many lists or objects."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if of_lists else {"a": value}
    return value


VERY_DEEP = (900, 950, 970, 980, 990)
"""Depths at which reading JSON just goes, and what looks at the value next may not."""
DEEP: tuple[Any, ...] = (
    [],
    {},
    [[]],
    [None],
    [{}],
    {"": None},
    nested(60),
    nested(60, False),
    [0] * 500,
    ["x"] * 500,
)
HOSTILE: tuple[Any, ...] = (*NUMBERS, *TEXTS, *PLAIN, *DEEP, *(f"<{n}>" for n in VERY_DEEP))


def written(value: Any) -> bytes:
    """JSON as bytes, lone surrogates and all; a text of VERY_DEEP as so many lists inside each
    other.
    """
    text = json.dumps(value, ensure_ascii=True).encode()
    for n in VERY_DEEP:
        text = text.replace(f'"<{n}>"'.encode(), b"[" * n + b"]" * n)
    return text


Place = tuple[Any, Any]
"""A list or object, and the key or index of one value inside it."""


def places(value: Any) -> Iterator[Place]:
    """Every place in a JSON value, without recursion."""
    stack = [value]
    while stack:
        top = stack.pop()
        items = (
            top.items()
            if isinstance(top, dict)
            else enumerate(top)
            if isinstance(top, list)
            else ()
        )
        for key, inner in list(items):
            yield top, key
            stack.append(inner)


def _copied(value: Any) -> Any:
    """A copy, by way of JSON, which goes deeper than ``copy.deepcopy``."""
    return json.loads(json.dumps(value))


def changed(value: Any, rng: Random, donors: Sequence[Any]) -> Any:
    """A JSON value with a few changes: hostile values, keys and parts of other values, things left
    out or doubled.
    """
    value = _copied(value)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5))):
        found = list(places(value))
        if not found:
            return _copied(rng.choice(donors)) if donors else rng.choice(HOSTILE)
        rng.choice(_CHANGES)(rng, value, *rng.choice(found), donors)
    return value


def _replace(rng: Random, whole: Any, at: Any, key: Any, donors: Sequence[Any]) -> None:
    at[key] = _copied(rng.choice(HOSTILE))


def _nudge(rng: Random, whole: Any, at: Any, key: Any, donors: Sequence[Any]) -> None:
    """A number made a little or much larger or smaller; anything else wrapped."""
    value = at[key]
    if isinstance(value, int) and not isinstance(value, bool):
        at[key] = rng.choice(
            (
                value + 1,
                value - 1,
                2 * value,
                value // 2,
                3 * value,
                -value,
                float(value % 10**9),
                0,
            )
        )
    elif isinstance(value, list):
        at[key] = rng.choice(
            (value * 2, value[:-1], value[1:], value[::-1], [*value, None], value[:1])
        )
    elif isinstance(value, bool | None):
        at[key] = rng.choice(PLAIN)
    else:
        at[key] = rng.choice(([value], {"a": value}, str(value) * 2, str(value)[1:]))


def _drop(rng: Random, whole: Any, at: Any, key: Any, donors: Sequence[Any]) -> None:
    del at[key]


def _swap(rng: Random, whole: Any, at: Any, key: Any, donors: Sequence[Any]) -> None:
    """A value from another place of the same file."""
    there, other = rng.choice(list(places(whole)))
    at[key] = _copied(there[other])


def _borrow(rng: Random, whole: Any, at: Any, key: Any, donors: Sequence[Any]) -> None:
    """A key and its value from another file."""
    found = list(places(rng.choice(donors))) if donors else []
    if not found:
        return
    there, other = rng.choice(found)
    if isinstance(at, dict) and isinstance(other, str):
        at[other] = _copied(there[other]) if rng.random() < 0.7 else _copied(rng.choice(HOSTILE))
    else:
        at[key] = _copied(there[other])


_CHANGES = (_replace, _replace, _nudge, _nudge, _drop, _swap, _borrow, _borrow)
