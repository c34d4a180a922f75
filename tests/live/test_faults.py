"""What goes wrong when a model is run, each time in one line and with its exit code."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcalc.sources import presets

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file  # noqa: E402


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A copy of the toy to break."""
    return Path(shutil.copytree(presets.TOY, tmp_path / "toy"))


def change(folder: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def one_line(ran: Any, code: int, *words: str) -> None:
    assert ran.code == code, ran.err
    first = ran.err.splitlines()[0]
    assert first.startswith("error: ") and "Traceback" not in ran.err
    for word in words:
        assert word in ran.err


def run(cli: Callable[..., Any], folder: Path, *more: str) -> Any:
    return cli("trace", folder, "--live", "--device", "cpu", *more)


def test_a_truncated_file(cli: Callable[..., Any], toy: Path) -> None:
    data = (toy / "model.safetensors").read_bytes()
    (toy / "model.safetensors").write_bytes(data[: len(data) // 2])
    one_line(run(cli, toy), 2, "truncated")


def test_a_missing_shard(cli: Callable[..., Any], toy: Path) -> None:
    names = list(load_file(toy / "model.safetensors"))
    (toy / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(names, "model-00001-of-00001.safetensors")}
    (toy / "model.safetensors.index.json").write_text(json.dumps(index))
    one_line(run(cli, toy), 2, "model-00001-of-00001.safetensors", "missing")


def test_a_tensor_that_is_not_there(cli: Callable[..., Any], toy: Path) -> None:
    change(toy, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
    one_line(run(cli, toy), 2, "model.layers.1.mlp.up_proj.weight", "llmcalc check")


def test_a_tensor_of_the_wrong_shape(cli: Callable[..., Any], toy: Path) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    change(toy, lambda t: t.update({name: t[name][:16].clone()}))
    one_line(run(cli, toy), 2, name, "[16, 64]", "[32, 64]")


def test_nan_is_named_where_it_is_first(cli: Callable[..., Any], toy: Path) -> None:
    def edit(tensors: dict[str, Any]) -> None:
        for name in ("model.layers.1.mlp.down_proj.weight", "model.layers.2.mlp.down_proj.weight"):
            tensors[name][3, 5] = float("nan")

    change(toy, edit)
    one_line(run(cli, toy), 2, "model.layers.1.mlp.down_proj.weight", "1 NaN")
    ran = cli("sample", "--model", toy, "--prompt", "It", "--steps", "3")
    one_line(ran, 2, "not finite")


def test_a_number_too_large_for_the_format(cli: Callable[..., Any], toy: Path) -> None:
    change(toy, lambda t: t["model.layers.0.mlp.down_proj.weight"].mul_(30000))
    one_line(run(cli, toy), 2, "too large for the format")
    assert run(cli, toy, "--dtype", "float32").code == 0


def test_a_device_that_is_not_there(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    one_line(cli("trace", "--live", "--device", "cuda:7"), 3, "cuda:7", "--run-on cpu")
    one_line(cli("trace", "--live", "--device", "tpu"), 2, "tpu")
    one_line(cli("trace", "--live", "--dtype", "int8"), 2, "int8")


def test_out_of_memory_says_what_there_was(
    cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from llmcalc.live.weights import Weights

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Weights, "layer", full)
    one_line(
        cli("trace", "--live", "--device", "cpu"),
        3,
        "274.50 KiB of weights",
        "free",
        "--stream-layers",
    )


def test_no_torch(cli: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("llmcalc.cli.measured.find_spec", lambda _: None)
    for words in (
        ("trace", "--live"),
        ("sample", "--live"),
        ("params", "toy", "--live"),
        ("check", "toy", "--live"),
    ):
        one_line(cli(*words), 3, "pip install '.[live]'")


def test_a_family_that_is_only_counted(cli: Callable[..., Any], tmp_path: Path) -> None:
    raw = {
        "model_type": "rwkv",
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "context_length": 8,
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    save_file({"x": torch.zeros(2)}, tmp_path / "model.safetensors")
    one_line(run(cli, tmp_path), 3, "rwkv", "not supported")
    one_line(cli("trace", "gpt2", "--live"), 2, "no weights")


def test_options_that_need_each_other(cli: Callable[..., Any]) -> None:
    one_line(cli("trace", "gpt2", "--prompt", "x"), 2, "--live")
    one_line(cli("trace", "--live", "--prompt", "x", "--ids", "1"), 2, "--prompt")
    one_line(cli("trace", "--live", "--ids", "1,x"), 2, "--ids")
    one_line(cli("trace", "--live", "--ids", "99"), 2, "65 rows")
    one_line(cli("trace", "--live", "--prompt", ""), 2, "empty")
    one_line(cli("trace", "--live", "--attention", "0.9"), 2, "heads 0 to 3")
    one_line(cli("trace", "--live", "--layers", "7"), 2, "0 to 2")
    one_line(cli("sample", "--steps", "3"), 2, "--live")
    one_line(cli("sample", "--live", "--steps", "0"), 2, "--steps")
    one_line(cli("params", "toy", "--device", "cpu"), 2, "--live")


SLOWLY = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
from llmcalc.live.run import Runner
forward = Runner.__call__
def slow(self, *words, **named):
    time.sleep(1)  # so that the signal comes in the middle, however busy the machine is
    return forward(self, *words, **named)
Runner.__call__ = slow
from llmcalc.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_ctrl_c_is_clean() -> None:
    words = ["sample", "--live", "--prompt", "The", "--steps", "250", "--stream"]
    command = [sys.executable, "-c", SLOWLY, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.read(3)  # it has begun
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == "error: interrupted" and "Traceback" not in err


def test_a_file_that_shrinks_under_us(toy: Path) -> None:
    from llmcalc.errors import InputError
    from llmcalc.live.load import load
    from llmcalc.sources import resolve

    model = resolve(str(toy))
    os.truncate(toy / "model.safetensors", 5000)
    with pytest.raises(InputError, match="shorter"):
        load(model, "cpu")


def test_streaming_holds_one_layer_at_a_time(tmp_path: Path) -> None:
    """A sparse checkpoint of 4.5 GB runs within 1.5 GB."""
    from llmcalc.sources import resolve
    from llmcalc.sources.names import promised

    raw = {
        "model_type": "llama",
        "vocab_size": 8000,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 10,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "torch_dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps(raw))
    header: dict[str, Any] = {}
    end = 0
    for name, want in promised(resolve(str(tmp_path)).anatomy).items():
        begin, end = end, end + 2 * torch.Size(want.shape).numel()
        header[name] = {"dtype": "BF16", "shape": list(want.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    assert end > 4.4e9
    words = [
        "trace",
        str(tmp_path),
        "--live",
        "--ids",
        "1,2",
        "--stream-layers",
        "--device",
        "cpu",
        "--json",
    ]
    code = (
        "import sys; from llmcalc.cli import main; from llmcalc.live.measure import peak_resident; "
        "code = main(sys.argv[1:]); print(peak_resident(), file=sys.stderr); sys.exit(code)"
    )
    began = time.monotonic()
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300
    )
    assert ran.returncode == 0, ran.stderr
    facts = json.loads(ran.stdout)["facts"]
    assert facts["weight_bytes"] == facts["weight_bytes_predicted"] == end
    predicted, grown = facts["stream_bytes_predicted"], facts["peak_resident_growth_bytes"]
    assert 0.8 * predicted < grown < 1.15 * predicted + 64 * 2**20
    assert int(ran.stderr.split()[-1]) < 1.5e9
    assert time.monotonic() - began < 280
