"""``dtype --tensor`` on files by the real writers: what a tensor holds, and what a format loses,
against torch.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from llmcalc.values import read
from tests.conftest import Ran

Cli = Callable[..., Ran]


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    w = torch.randn(48, 256) * 0.05
    w[3, 7] = 4.0
    odd = torch.tensor(
        [[1.0, float("nan"), float("inf"), 1e-6, 0.0, -2.0, 0.5, 3.0]], dtype=torch.float16
    )
    tensors = {
        "w": w.to(torch.bfloat16),
        "odd": odd,
        "zeros": torch.zeros(4, 32),
        "empty": torch.zeros(0, 8),
        "codes": torch.arange(8, dtype=torch.int32),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def said(cli: Cli, *words: object) -> dict[str, Any]:
    ran = cli("dtype", *words, "--json")
    assert ran.code == 0, ran.err
    found: dict[str, Any] = json.loads(ran.out)
    return found


def test_what_a_tensor_holds(cli: Cli, weights: Path) -> None:
    torch.manual_seed(0)
    w = torch.randn(48, 256) * 0.05
    w[3, 7] = 4.0
    w = w.to(torch.bfloat16).double()
    facts = said(cli, "--tensor", f"{weights}:w")["facts"]
    assert (facts["elements"], facts["min"], facts["max"]) == (
        w.numel(),
        float(w.min()),
        float(w.max()),
    )
    assert facts["mean"] == pytest.approx(float(w.mean()), rel=1e-12)
    assert facts["std"] == pytest.approx(float(w.std(correction=0)), rel=1e-12)
    assert facts["zeros"] == int((w == 0).sum())
    assert facts["outliers"] == int(((w - w.mean()).abs() > 6 * w.std(correction=0)).sum()) == 1
    assert sum(facts["histogram"]["counts"]) == w.numel()


CASTS = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float8_e4m3fn": torch.float8_e4m3fn}


@pytest.mark.parametrize("name", [*CASTS, "float8_e5m2"])
def test_losses_are_torchs(cli: Cli, weights: Path, name: str) -> None:
    from safetensors.torch import load_file

    w = load_file(weights)["w"].double()
    kind = CASTS.get(name, torch.float8_e5m2)
    errors = (w.float().to(kind).double() - w).abs()
    row = said(cli, name, "--tensor", f"{weights}:w")["rows"][0]
    assert row["max_error"] == float(errors.max())
    assert row["mean_error"] == pytest.approx(float(errors.mean()), rel=1e-12)
    if float(errors.max()):
        snr = 10 * math.log10(float((w**2).sum()) / float((errors**2).sum()))
        assert row["snr_db"] == pytest.approx(snr, rel=1e-9)
    else:
        assert row["snr_db"] is None


def test_int8_per_row_and_per_column(cli: Cli, weights: Path) -> None:
    from safetensors.torch import load_file

    w = load_file(weights)["w"].float()
    rows = {r["scaling"]: r for r in said(cli, "int8", "--tensor", f"{weights}:w")["rows"]}
    for way, axis in (("symmetric, per row", 0), ("symmetric, per column", 1)):
        scales = w.abs().amax(1 - axis).double() / 127
        zeros = torch.zeros(len(scales), dtype=torch.int32)
        back = torch.fake_quantize_per_channel_affine(w, scales.float(), zeros, axis, -127, 127)
        assert rows[way]["max_error"] == pytest.approx(float((back - w).abs().max()), rel=1e-4)
    assert rows["symmetric, per row"]["snr_db"] > rows["symmetric, per tensor"]["snr_db"]
    assert rows["symmetric, per 32"]["snr_db"] > rows["symmetric, per 128"]["snr_db"]


def test_q8_0_is_gguf_own(cli: Cli, weights: Path) -> None:
    from safetensors.torch import load_file

    w = load_file(weights)["w"].float().numpy()
    kind = gguf.GGMLQuantizationType.Q8_0
    back = gguf.quants.dequantize(gguf.quants.quantize(w, kind), kind)
    assert said(cli, "q8_0", "--tensor", f"{weights}:w")["rows"][0]["max_error"] == float(
        np.abs(back.astype(np.float64) - w).max()
    )


def test_what_a_gguf_file_holds_comes_back_exactly(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    numbers = np.random.default_rng(0).normal(0, 1, (6, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    writer.add_tensor("blk.0.attn_q.weight", gguf.quants.quantize(numbers, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = said(cli, "--tensor", path)
    back = gguf.quants.dequantize(gguf.quants.quantize(numbers, kind), kind)
    assert found["facts"]["max"] == float(back.max())
    assert next(r for r in found["rows"] if r["dtype"] == "q4_1")["max_error"] == 0


def test_nan_and_infinities_are_left_out(cli: Cli, weights: Path) -> None:
    found = said(cli, "--tensor", f"{weights}:odd")
    facts = found["facts"]
    assert (facts["nan"], facts["inf"], facts["zeros"], facts["subnormal"]) == (1, 1, 1, 1)
    assert (facts["min"], facts["max"], facts["elements"]) == (-2.0, 3.0, 8)
    assert facts["mean"] == pytest.approx((1 + np.float16(1e-6) + 0 - 2 + 0.5 + 3) / 6, rel=1e-9)
    assert all(math.isfinite(r["max_error"]) for r in found["rows"])
    text = cli("dtype", "--tensor", f"{weights}:odd").out
    assert "NaN, left out" in text and "infinite, left out" in text


def test_all_zeros(cli: Cli, weights: Path) -> None:
    found = said(cli, "--tensor", f"{weights}:zeros")
    assert found["facts"]["all_zero"] is True
    assert all(r["max_error"] == 0 and r["snr_db"] is None for r in found["rows"])


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("W.weight", (), "w"),
        ("empty", (), "empty"),
        ("codes", (), "int32"),
        ("w", ("q4_k",), "q4_k"),
        ("w", ("nothing",), "nothing"),
        ("w", ("--plot", "x.doc"), "x.doc"),
    ],
)
def test_wrong_input_is_one_line(
    cli: Cli, weights: Path, name: str, words: tuple[str, ...], says: str
) -> None:
    ran = cli("dtype", *words, "--tensor", f"{weights}:{name}")
    assert ran.code == 2 and says in ran.err and "Traceback" not in ran.err
    assert len([line for line in ran.err.splitlines() if line and not line.startswith("hint")]) == 1


def test_a_file_that_is_none(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(b"no")
    assert cli("dtype", "--tensor", tmp_path / "x.safetensors").code == 2
    assert cli("dtype", "--tensor", tmp_path / "gone.safetensors").code == 2


def test_a_whole_file(cli: Cli, weights: Path) -> None:
    rows = {r["name"]: r for r in said(cli, "mxfp4", "--tensor", weights)["rows"]}
    assert set(rows) == {"w", "odd", "zeros"}
    alone = said(cli, "mxfp4", "--tensor", f"{weights}:w")["rows"][0]
    assert rows["w"]["snr_db"] == alone["snr_db"] and rows["w"]["max_error"] == alone["max_error"]


def test_rows_that_no_block_divides(cli: Cli, weights: Path) -> None:
    """``odd`` has rows of 8, which q8_0 does not divide: it has no losses, and the others have
    theirs.
    """
    rows = {r["name"]: r for r in said(cli, "q8_0", "--tensor", weights)["rows"]}
    assert (
        rows["odd"]["max_error"] is None
        and rows["odd"]["snr_db"] is None
        and rows["w"]["max_error"] > 0
    )
    alone = cli("dtype", "q8_0", "--tensor", f"{weights}:odd")
    assert alone.code == 2 and "rows of 8" in alone.err


def test_chunks_do_not_show(cli: Cli, weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = said(cli, "--tensor", f"{weights}:w")
    monkeypatch.setattr(read, "CHUNK", 256 * 5)
    parts = said(cli, "--tensor", f"{weights}:w")
    for a, b in zip(whole["rows"], parts["rows"], strict=True):
        assert a == {
            k: pytest.approx(v, rel=1e-9) if isinstance(v, float) else v for k, v in b.items()
        }
    assert whole["facts"]["histogram"] == parts["facts"]["histogram"]
    assert whole["facts"]["std"] == pytest.approx(parts["facts"]["std"], rel=1e-12)


def test_picture_of_a_histogram(cli: Cli, weights: Path, tmp_path: Path) -> None:
    assert cli("dtype", "bf16", "--tensor", f"{weights}:w", "--plot", tmp_path / "h.svg").code == 0
    assert "<svg" in (tmp_path / "h.svg").read_text()


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A sparse file of 512 MiB: the process stays below 300 MiB."""
    path = tmp_path / "big.safetensors"
    n = 2**28
    header = json.dumps(
        {"w": {"dtype": "F16", "shape": [2**14, 2**14], "data_offsets": [0, 2 * n]}}
    ).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 2 * n)
    code = (
        "import sys; from llmcalc.cli import main; code = main(sys.argv[1:]);print([x for x in"
        " open('/proc/self/status') if x.startswith('VmHWM')][0], file=sys.stderr); sys.exit(code)"
    )
    words = ["dtype", "float16", "--tensor", f"{path}:w", "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["facts"]["zeros"] == n
    assert int(ran.stderr.split("VmHWM:")[1].split()[0]) < 300 * 1024
