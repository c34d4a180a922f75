"""Hub ids in all the ways that people write them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_REPO = r"[\w.-]+/[\w.-]+?"
_PLACE = re.compile(rf"(?:hf://|(?:https?://)?hf\.co/)?({_REPO})(?:@([\w./-]+))?(?::([\w./+-]+))?")
_PAGE = re.compile(
    r"https?://[\w.:-]+/([\w.-]+/[\w.-]+)(?:/(?:tree|blob|resolve|raw)/([\w.-]+)(?:/([^?#]*))?)?/?(?:[?#].*)?"
)
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Place:
    """A repository, its branch, tag or commit, and a file or quantisation where one is meant."""

    repo: str
    revision: str | None = None
    file: str | None = None

    def __str__(self) -> str:
        return self.repo + (f"@{self.revision}" if self.revision else "")

    @property
    def exact(self) -> bool:
        """Whether the revision is a commit: what it holds never changes."""
        return self.revision is not None and _COMMIT.fullmatch(self.revision) is not None


def place(name: str) -> Place | None:
    """The place that a hub id or the address of a model's page names, or None.

    >>> place("hf://openai-community/gpt2@main"), place("https://huggingface.co/openai-community/gpt2").repo
    (Place(repo='openai-community/gpt2', revision='main', file=None), 'openai-community/gpt2')
    """
    found = _PLACE.fullmatch(name) or _PAGE.fullmatch(name)
    if found is None or ".." in name:
        return None
    return Place(found[1], found[2], (found[3] or "").strip("/") or None)
