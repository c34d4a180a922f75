"""What can go wrong for a user, each with its exit code and a hint.

LlmcalcError
├── InputError (2)          a usage or input fault: unknown model, bad size, broken file
│   ├── ConfigError         a config that lacks or contradicts a size
│   └── HeaderError         a checkpoint file that breaks its own format
└── UnavailableError (3)    not here: an optional package, a network, a device
    └── MissingError        a repository that is there, without what was asked for
"""

from __future__ import annotations

from llmcalc.text import shorten

_LONGEST = 600
"""Characters of a message: a file may hold names of any length."""


def install(extra: str) -> str:
    """How an optional part is installed.

    The package index has another project under this one's name.
    """
    return f"pip install '.[{extra}]' in llmcalc's checkout"


class LlmcalcError(Exception):
    """An error that a user can act on: one line, and a hint where one helps."""

    exit_code = 70

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(shorten(message, _LONGEST))
        self.hint = hint


class InputError(LlmcalcError):
    """The command line or a file it names is at fault."""

    exit_code = 2


class ConfigError(InputError):
    """A config lacks a size that is needed, or holds one that cannot be.

    ``lacks`` is the size that is not there, with the section of the config where it should be.
    """

    def __init__(
        self, message: str, hint: str | None = None, lacks: tuple[str | None, str] | None = None
    ) -> None:
        super().__init__(message, hint)
        self.lacks = lacks


class HeaderError(InputError):
    """A checkpoint file breaks its own format."""


class UnavailableError(LlmcalcError):
    """Something is not to be had on this machine: a package, a network, a device."""

    exit_code = 3


class MissingError(UnavailableError):
    """A repository is there, and what was asked for is not in it."""
