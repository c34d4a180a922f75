"""Engines' own words on the command line, put into the options here before they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from llmcalc.cli.said import say
from llmcalc.errors import InputError

COMMANDS = ("kvcache", "fit", "speed")
_DEVICES = ("fit", "speed")


def in_our_words(argv: Sequence[str]) -> list[str]:
    """The command line with every engine's word replaced by the option that it means.

    llama.cpp's ``-c`` is what all of its ``-np`` slots share, and ``--ctx`` is what one sequence
    may use, so the one is divided by the other, unless the cache is unified.
    """
    command = next((word for word in argv if not word.startswith("-")), "")
    if command not in COMMANDS:
        return list(argv)
    # engines are loaded with their words, which no other command pays for
    from llmcalc.engines.spellings import CELLS, FLAGS, KEYS, MEANS, SLOTS, UNIFIED, VALUES

    words, given, ranks = list[str](), dict[str, str](), dict[str, str]()
    waiting = iter(argv)
    for word in waiting:
        name, equals, value = word.partition("=")
        option = MEANS.get(name)
        if option is None:
            words.append(word)
            continue
        if option in FLAGS:
            words.append(option)
            continue
        if not equals:
            value = next(waiting, "")
        if not value:
            raise InputError(f"{name} needs a value")
        if name in (*KEYS, *VALUES, *CELLS, *SLOTS):
            given[name] = value
            continue
        if option in ("--tp", "--pp") and command in _DEVICES:
            ranks[option] = value
            continue
        words += [option, value]
    return words + _devices(ranks) + _joined(given, any(word in UNIFIED for word in argv))


def _devices(ranks: Mapping[str, str]) -> list[str]:
    """All devices and their stages, where an engine counts ranks of a stage and stages."""
    words = ["--pp", ranks["--pp"]] if "--pp" in ranks else []
    if not all(n.isdecimal() for n in ranks.values()):
        return [*words, *(["--count", ranks["--tp"]] if "--tp" in ranks else [])]
    many = prod(int(n) for n in ranks.values())
    return [*words, "--count", str(many)] if ranks else words


def _joined(given: dict[str, str], unified: bool) -> list[str]:
    """llama.cpp's pairs: types of keys and values, cells and the slots that share them."""
    from llmcalc.engines.spellings import CELLS, KEYS, SLOTS, VALUES

    words: list[str] = []
    keys, values = (_first(given, names) for names in (KEYS, VALUES))
    if keys or values:
        words += ["--kv-dtype", f"{keys or 'f16'},{values or 'f16'}"]
    cells, slots = (_first(given, names) for names in (CELLS, SLOTS))
    if slots:
        words += ["--batch", slots]
    if cells and slots and not unified and cells.isdecimal() and slots.isdecimal():
        each = int(cells) // max(int(slots), 1)
        say(f"-c {cells} over -np {slots}: {each:,} tokens for each sequence")
        cells = str(each)
    if cells:
        words += ["--ctx", cells]
    return words


def _first(given: dict[str, str], names: Sequence[str]) -> str | None:
    return next((given[name] for name in names if name in given), None)
