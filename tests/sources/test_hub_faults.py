"""What a hub does on a bad day, and what is kept of it: every fault once, by a server that fails on
demand.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources.fake_hub import COMMIT, Hub, serving
from tests.sources.test_hub import fill, ran

SHARDS = 5


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    root = tmp_path / "hub"
    fill(root / "org" / "one", 1)
    fill(root / "org" / "many", SHARDS)
    with serving(root) as server:
        yield server


def said_in_one_line(err: str) -> bool:
    lines = [x for x in err.splitlines() if x]
    return len(lines) == 2 and lines[0].startswith("error: ") and lines[1].startswith("hint: ")


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("ending", ["config.json", "index.json", "00003-of-00005.safetensors"])
def test_a_busy_hub_is_waited_for(hub: Hub, tmp_path: Path, status: int, ending: str) -> None:
    hub.busy = {ending: [(status, "1"), (status, "")]}
    begun = time.monotonic()
    found = ran(hub, tmp_path / "home", "check", "org/many")
    assert found.code == 0, found.err
    assert not hub.busy[ending] and time.monotonic() - begun > 1  # as long as it asked for


def test_patience_ends(hub: Hub, tmp_path: Path) -> None:
    """Always busy, or busy for longer than anybody waits: a line, and exit code 3."""
    hub.fails = {"00003-of-00005.safetensors": 503}
    found = ran(hub, tmp_path / "a", "check", "org/many")
    assert found.code == 3 and "503" in found.err and said_in_one_line(found.err)
    hub.fails, hub.busy = {}, {"config.json": [(429, "86400")] * 9}
    begun = time.monotonic()
    found = ran(hub, tmp_path / "b", "check", "org/many")
    assert found.code == 3 and "429" in found.err and said_in_one_line(found.err)
    assert time.monotonic() - begun < 15


@pytest.mark.parametrize("times", [1, 2, 9])
def test_a_cut_connection_is_taken_up(hub: Hub, tmp_path: Path, times: int) -> None:
    ending = "00002-of-00005.safetensors"
    hub.cuts = {ending: times}
    found = ran(hub, tmp_path / "home", "check", "org/many")
    assert found.code == (3 if times == 9 else 0), found.err
    if times == 9:
        assert said_in_one_line(found.err)
    else:
        assert hub.asked[f"GET /org/many/resolve/{COMMIT}/model-{ending}"] == times + 1


def test_a_file_that_changes_is_read_again(hub: Hub, tmp_path: Path) -> None:
    """The beginning is of one file and the rest of another: both are dropped, once; then it is
    refused.
    """
    from safetensors.torch import load_file, save_file

    path = hub.root / "org" / "one" / "model.safetensors"
    save_file(load_file(path), path, metadata={"note": "x" * 700_000})
    hub.changes = {"model.safetensors": 1}
    assert ran(hub, tmp_path / "a", "check", "org/one").code == 0
    hub.changes, hub.cuts = {"model.safetensors": 99}, {"model.safetensors": 99}
    found = ran(hub, tmp_path / "b", "check", "org/one")
    assert (
        found.code == 3 and "changes while it is read" in found.err and said_in_one_line(found.err)
    )


@pytest.mark.parametrize("ranges", [True, False])
def test_a_server_without_ranges(hub: Hub, tmp_path: Path, ranges: bool) -> None:
    """A header longer than the first request: with ranges two requests, without them the whole is
    begun again.
    """
    from safetensors.torch import load_file, save_file

    path = hub.root / "org" / "one" / "model.safetensors"
    save_file(load_file(path), path, metadata={"note": "x" * 700_000})
    hub.ranges = ranges
    assert ran(hub, tmp_path / "home", "check", "org/one").code == 0


def test_no_token_leaves_the_hub(hub: Hub, tmp_path: Path) -> None:
    """Weights are redirected to another host: it is asked for them, and never sees the token."""
    with serving(hub.root) as store:
        hub.elsewhere = store
        found = ran(hub, tmp_path / "home", "check", "org/many", HF_TOKEN="hf_secret_of_mine")
        assert found.code == 0, found.err
        asked = {
            path: token for path, token in store.tokens.items() if path.endswith(".safetensors")
        }
        assert len(asked) == SHARDS and set(asked.values()) == {None}
    assert (
        hub.tokens[f"/org/many/resolve/{COMMIT}/model-00001-of-00005.safetensors"]
        == "Bearer hf_secret_of_mine"
    )


@pytest.mark.parametrize(
    ("endpoint", "more", "says"),
    [
        ("http://127.0.0.1:9", {}, "cannot be reached"),
        ("http://nowhere.invalid", {}, "name of http://nowhere.invalid"),
        (
            "http://nowhere.invalid",
            {"HTTP_PROXY": "http://127.0.0.1:9", "http_proxy": "http://127.0.0.1:9"},
            "proxy",
        ),
        ("HTTPS", {}, "no safe connection"),
    ],
)
def test_no_network(
    hub: Hub, tmp_path: Path, endpoint: str, more: dict[str, str], says: str
) -> None:
    """No route, no name, no proxy, no TLS: each says which, at once."""
    endpoint = endpoint.replace("HTTPS", hub.url.replace("http:", "https:"))
    bare = {
        "HTTP_PROXY": "",
        "http_proxy": "",
        "HTTPS_PROXY": "",
        "https_proxy": "",
        "ALL_PROXY": "",
        "all_proxy": "",
    }
    begun = time.monotonic()
    found = ran(
        hub, tmp_path / "home", "check", "org/one", **{**bare, "HF_ENDPOINT": endpoint, **more}
    )
    assert found.code == 3 and says in found.err and said_in_one_line(found.err), found.err
    assert time.monotonic() - begun < 12


def test_names_that_are_nearly_right(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert ran(hub, home, "params", "org/many").code == 0
    found = ran(hub, home, "params", "org/manny")
    assert found.code == 3 and "org/many" in found.err.splitlines()[-1]
    found = ran(hub, home, "params", "openai-community/gpt3")
    assert found.code == 3 and "gpt" in found.err.splitlines()[-1]
    found = ran(hub, home, "params", "org/one:modle.safetensors")
    assert found.code == 3 and "model.safetensors" in found.err.splitlines()[-1]


@pytest.mark.parametrize("repo", ["org/one", "org/many"])
def test_the_second_call_needs_no_network(hub: Hub, tmp_path: Path, repo: str) -> None:
    home = tmp_path / "home"
    first = ran(hub, home, "check", repo, "--json")
    asked = sum(hub.asked.values())
    exact = ran(hub, home, "check", f"{repo}@{COMMIT}", "--json")
    assert sum(hub.asked.values()) == asked  # a commit never changes, and is never asked for
    offline = ran(hub, home, "check", repo, "--json", HF_HUB_OFFLINE="1")
    gone = ran(
        hub, home, "check", repo, "--json", HF_ENDPOINT=hub.url, HTTP_PROXY="http://127.0.0.1:9"
    )
    assert sum(hub.asked.values()) == asked + (
        1 if gone.code == 0 and sum(hub.asked.values()) > asked else 0
    )
    answers = [json.loads(r.out) for r in (first, exact, offline)]
    assert [r.code for r in (first, exact, offline)] == [0, 0, 0]
    assert all(a["facts"] == answers[0]["facts"] for a in answers)


def test_a_corrupt_entry_is_dropped_and_fetched_again(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert ran(hub, home, "check", "org/many").code == 0
    entries = sorted((home / "llmcalc").glob("*.entry"))
    assert len(entries) >= SHARDS
    for i, path in enumerate(entries):
        data = path.read_bytes()
        path.write_bytes([data[: len(data) // 2], b"", data[:-1] + bytes([data[-1] ^ 1])][i % 3])
    before = sum(n for path, n in hub.asked.items() if path.endswith(".safetensors"))
    assert ran(hub, home, "check", "org/many").code == 0
    assert (
        sum(n for path, n in hub.asked.items() if path.endswith(".safetensors")) == before + SHARDS
    )
    assert ran(hub, home, "check", f"org/many@{COMMIT}", HF_HUB_OFFLINE="1").code == 0


def test_a_killed_process_leaves_a_cache_that_works(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    env = dict(os.environ) | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(home),
        "LLMCALC_CACHE_DIR": str(home / "llmcalc"),
    }
    command = [sys.executable, "-m", "llmcalc", "check", "org/many", "--jobs", "1"]
    hub.rate = 30_000.0
    for wait in (1, 2, 4):  # so many requests are through, one is under way
        begun = sum(hub.asked.values())
        process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while sum(hub.asked.values()) < begun + wait and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
    hub.rate = 0.0
    found = ran(hub, home, "check", "org/many")
    assert found.code == 0, found.err
    assert ran(hub, home, "check", f"org/many@{COMMIT}", HF_HUB_OFFLINE="1").code == 0


def test_the_cache_is_shown_bounded_and_cleared(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert ran(hub, home, "check", "org/many").code == 0
    shown = json.loads(ran(hub, home, "cache", "--json").out)
    assert shown["facts"]["count"] == len(shown["rows"]) >= SHARDS
    assert any(row["of"].endswith("model-00001-of-00005.safetensors") for row in shown["rows"])
    most = shown["facts"]["bytes"] // 2
    bounded = json.loads(ran(hub, home, "cache", "--max", str(most), "--json").out)["facts"]
    assert 0 < bounded["bytes"] <= most and bounded["dropped"] > 0
    assert json.loads(ran(hub, home, "cache", "--clear", "--json").out)["facts"]["count"] == 0
    assert ran(hub, home, "check", "org/many", LLMCALC_CACHE_MAX="0").code == 0
    assert json.loads(ran(hub, home, "cache", "--json").out)["facts"]["count"] == 0
    assert ran(hub, home, "check", "org/many", LLMCALC_CACHE_MAX="2kB").code == 0
    assert json.loads(ran(hub, home, "cache", "--json").out)["facts"]["bytes"] <= 2000
    for words in (("--clear", "--max", "1"), ("--max", "much")):
        assert ran(hub, home, "cache", *words).code == 2


def test_a_cache_that_cannot_be_written_costs_time_alone(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    blocked = tmp_path / "file"
    blocked.write_text("no directory")
    assert ran(hub, home, "check", "org/many", LLMCALC_CACHE_DIR=str(blocked / "below")).code == 0


def test_a_config_that_is_far_too_large(hub: Hub, tmp_path: Path) -> None:
    with (hub.root / "org" / "one" / "config.json").open("wb") as file:
        file.truncate(300_000_000)
    found = ran(hub, tmp_path / "home", "params", "org/one")
    assert found.code == 2 and "300,000,000 bytes" in found.err and hub.sent < 1000


EVIL = (
    "/tmp/llmcalc-evil",
    "../../../../evil",
    "..",
    ".",
    "a/../../evil",
    "C:\\evil",
    "%2e%2e%2fevil",
    "~/evil",
    "a" * 3000,
)


@pytest.mark.parametrize("place", EVIL)
@pytest.mark.parametrize("header", ["tag", "commit"])
def test_no_header_chooses_a_path(hub: Hub, tmp_path: Path, place: str, header: str) -> None:
    """What a hub says names no file: everything that is written lies inside the cache."""
    before = {p for p in tmp_path.rglob("*") if "home" not in p.parts}
    setattr(hub, header, f'"{place}"' if header == "tag" else place)
    found = ran(hub, tmp_path / "home", "params", "org/one")
    assert {p for p in tmp_path.rglob("*") if "home" not in p.parts} == before
    assert not Path("/tmp/llmcalc-evil").exists()
    assert found.code == (0 if header == "tag" else 3), found.err
    written = [p for p in (tmp_path / "home").rglob("*") if p.is_file()]
    assert all("evil" not in str(p) for p in written)
