"""The site of docs/: every page is in its navigation, and it builds without a warning and without
the network.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))
IN_NAV = re.compile(r"^ +- [^:\n]+: (\S+\.md)$", re.M)
FETCHED = re.compile(
    r"<(?:script|link|img|iframe)[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)


def test_every_page_is_in_the_nav_once() -> None:
    assert sorted(IN_NAV.findall((ROOT / "mkdocs.yml").read_text())) == PAGES


def test_it_builds_strictly_and_a_page_fetches_nothing(tmp_path: Path) -> None:
    for package in ("mkdocs", "material"):
        pytest.importorskip(package, reason="the extra docs is not installed")
    # Proxies that nobody listens on, so that a build which asks the network fails; the theme's
    # notice is no finding.
    nowhere = dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "-f",
        ROOT / "mkdocs.yml",
        "-d",
        tmp_path,
    ]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        env={**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"},
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "WARNING" not in said and "ERROR" not in said
    built = {str(p.relative_to(tmp_path)): p.read_text() for p in tmp_path.rglob("*.html")}
    assert {page.removesuffix(".md") + ".html" for page in PAGES} | {"404.html"} == set(built)
    assert {name: found for name, text in built.items() if (found := FETCHED.findall(text))} == {}
