"""Models by hub id, against a server on loopback that huggingface_hub itself talks to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from llmcalc.sources.places import Place, place
from tests.conftest import Ran
from tests.sources.fake_hub import COMMIT, Hub, serving

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
CONFIG = {
    "model_type": "llama",
    "vocab_size": 128,
    "num_key_value_heads": 2,
    "torch_dtype": "float32",
    **SIZES,
}


def weights() -> dict[str, torch.Tensor]:
    from llmcalc.config import Config
    from llmcalc.families import anatomy
    from llmcalc.sources.names import promised

    return {name: torch.zeros(w.shape) for name, w in promised(anatomy(Config(CONFIG))).items()}


def fill(folder: Path, shards: int) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = weights()
    if shards == 1:
        save_file(tensors, folder / "model.safetensors")
        return
    names = sorted(tensors)
    places = {}
    for i in range(shards):
        part = {n: tensors[n] for n in names[i::shards]}
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        save_file(part, folder / file)
        places |= dict.fromkeys(part, file)
    index = {
        "metadata": {"total_size": sum(t.numel() * 4 for t in tensors.values())},
        "weight_map": places,
    }
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    root = tmp_path / "hub"
    fill(root / "org" / "one", 1)
    fill(root / "org" / "many", 5)
    with serving(root) as server:
        yield server


def ran(hub: Hub, home: Path, *words: str, **more: str) -> Ran:
    """The command in a process of its own, whose hub is ours and whose cache is a new one."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    env = keep | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "NO_COLOR": "1", **more}
    env = {"LLMCALC_CACHE_DIR": str(home / "llmcalc"), **env}
    done = subprocess.run(
        [sys.executable, "-m", "llmcalc", *words],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("org/name", Place("org/name")),
        ("hf://org/name", Place("org/name")),
        ("org/name@v1.0", Place("org/name", "v1.0")),
        ("org/name:m.gguf", Place("org/name", None, "m.gguf")),
        ("https://huggingface.co/org/name", Place("org/name")),
        ("https://huggingface.co/org/name/tree/main", Place("org/name", "main")),
        (
            "https://huggingface.co/org/name/blob/main/config.json",
            Place("org/name", "main", "config.json"),
        ),
        ("org/../name", None),
        ("a/b/c", None),
        ("org/na me", None),
    ],
)
def test_places(name: str, want: Place | None) -> None:
    assert place(name) == want


def test_params_costs_the_config_alone(hub: Hub, tmp_path: Path) -> None:
    found = ran(hub, tmp_path / "home", "params", "org/one", "--json")
    assert found.code == 0, found.err
    total = sum(t.numel() for t in weights().values())
    assert json.loads(found.out)["facts"]["total_params"] == total
    assert not any("safetensors" in path for path in hub.asked)
    assert hub.sent < 2000


@pytest.mark.parametrize("repo", ["org/one", "org/many"])
def test_check_reads_the_first_bytes(hub: Hub, tmp_path: Path, repo: str) -> None:
    found = ran(hub, tmp_path / "home", "check", repo, "--json")
    assert found.code == 0, found.err
    shards = {
        path for path in hub.asked if path.startswith("GET") and path.endswith(".safetensors")
    }
    assert len(shards) == (5 if repo == "org/many" else 1)
    assert all(hub.asked[path] == 1 for path in shards)


def test_a_large_file_is_not_read_even_without_ranges(hub: Hub, tmp_path: Path) -> None:
    """A server that ignores Range sends everything; the connection is closed where the
    header ends.
    """
    path = hub.root / "org" / "one" / "model.safetensors"
    header = {"t": {"dtype": "F32", "shape": [2**26], "data_offsets": [0, 2**28]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 2**28)
    for hub.ranges in (True, False):
        hub.sent = 0
        assert (
            ran(hub, tmp_path / "home", "check", "org/one").code == 1
        )  # it is not what its config promises
        assert hub.sent < 2**25


def test_a_header_longer_than_the_first_window(hub: Hub, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = hub.root / "org" / "one" / "model.safetensors"
    save_file(load_file(path), path, metadata={"note": "x" * 700_000})
    assert ran(hub, tmp_path / "home", "check", "org/one").code == 0
    assert (
        hub.asked[f"GET /org/one/resolve/{COMMIT}/{path.name}"] == 2
    )  # the beginning, and the rest of it


def test_the_cache_answers_without_the_network(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert ran(hub, home, "params", "org/one").code == 0
    asked = sum(hub.asked.values())
    offline = ran(hub, home, "params", "org/one", "--json", HF_HUB_OFFLINE="1")
    assert offline.code == 0 and sum(hub.asked.values()) == asked
    exact = ran(hub, home, "params", f"org/one@{COMMIT}", "--json")
    assert exact.code == 0 and sum(hub.asked.values()) == asked
    assert ran(hub, home, "params", "org/one", HF_ENDPOINT="http://127.0.0.1:9").code == 0


def test_what_goes_wrong_is_one_line(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    cases: list[tuple[tuple[str, ...], dict[str, str], dict[str, int], int, str]] = [
        (("params", "org/none"), {}, {}, 3, "org/none"),
        (("params", "org/one@nothing"), {}, {}, 3, "nothing"),
        (("params", "org/one:m.gguf"), {}, {}, 3, "m.gguf"),
        (("params", "org/one"), {"HF_HUB_OFFLINE": "1"}, {}, 3, "HF_HUB_OFFLINE"),
        (("params", "org/one"), {"HF_ENDPOINT": "http://127.0.0.1:9"}, {}, 3, "cannot be reached"),
        (("params", "org/one"), {}, {"config.json": 403}, 3, "gated"),
        (("params", "org/one"), {}, {"config.json": 501}, 3, ""),
        (("check", "org/one"), {}, {"model.safetensors": 501}, 3, "501"),
        (("params", "https://huggingface.co/org/none"), {}, {}, 3, "org/none"),
    ]
    for words, more, fails, code, says in cases:
        hub.fails = fails
        found = ran(hub, home, *words, **more)
        assert (found.code, found.out) == (code, ""), (words, more, found.err)
        assert says in found.err and "Traceback" not in found.err, found.err
        assert len([x for x in found.err.splitlines() if x and not x.startswith("hint")]) == 1, (
            found.err
        )


def test_a_tokenizer_comes_too_and_weights_do_not(hub: Hub, tmp_path: Path) -> None:
    import llmcalc

    toy = Path(llmcalc.__file__).parent / "presets" / "toy" / "tokenizer.json"
    (hub.root / "org" / "one" / "tokenizer.json").write_bytes(toy.read_bytes())
    home = tmp_path / "home"
    there = ran(hub, home, "tokenize", "--model", "org/one", "Now", "--json")
    here = ran(hub, home, "tokenize", "--model", "toy", "Now", "--json")
    assert there.code == 0, there.err
    assert [r["id"] for r in json.loads(there.out)["rows"]] == [
        r["id"] for r in json.loads(here.out)["rows"]
    ]
    assert ran(hub, home, "tokenize", "--model", "org/many", "Now").code == 3
    weights = ran(hub, home, "dtype", "--tensor", "org/one:lm_head.weight")
    assert weights.code == 3 and "not here" in weights.err
    assert not any(path.endswith("model.safetensors") for path in hub.asked)


def test_a_hostile_repository(hub: Hub, tmp_path: Path) -> None:
    home = tmp_path / "home"
    many = hub.root / "org" / "many"
    index = {"weight_map": {"a": "../../secret.safetensors"}}
    (many / "model.safetensors.index.json").write_text(json.dumps(index))
    found = ran(hub, home, "check", "org/many")
    assert found.code == 2 and "outside" in found.err
    (hub.root / "org" / "one" / "model.safetensors").write_bytes(b"\xff" * 100)
    found = ran(hub, home, "check", "org/one")
    assert found.code == 2 and "header length" in found.err


def test_a_token_goes_to_the_hub_alone(hub: Hub, tmp_path: Path) -> None:
    """HF_TOKEN is sent to HF_ENDPOINT; nothing of it is printed."""
    found = ran(hub, tmp_path / "home", "params", "org/none", HF_TOKEN="hf_secret_of_mine")
    assert found.code == 3 and "hf_secret" not in found.err + found.out


def test_eight_processes_on_a_cold_cache(hub: Hub, tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    env = dict(os.environ) | {
        "HF_ENDPOINT": hub.url,
        "HF_HOME": home,
        "LLMCALC_CACHE_DIR": home + "/llmcalc",
    }
    command = [sys.executable, "-m", "llmcalc", "check", "org/many", "--json"]
    running = [
        subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        for _ in range(8)
    ]
    answers = [p.communicate(timeout=120)[0] for p in running]
    assert all(p.returncode == 0 for p in running) and len(set(answers)) == 1
    fetched = {path: n for path, n in hub.asked.items() if path.startswith("GET")}
    assert len(fetched) == 7 and set(fetched.values()) == {1}  # config, index, five shards
