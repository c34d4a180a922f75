"""Logits of every family that can be run, against the reference implementation (transformers
5.24.0).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmcalc.cli.trace.live import cache_bytes
from llmcalc.families import runnable
from llmcalc.live.load import Live, load, run_bytes
from llmcalc.live.trace import activation_peak, ids_tensor, watch
from llmcalc.questions.trace import ask, peak_bound, walk
from llmcalc.sources import resolve
from tests.live.models import MODELS, reference

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.reference
BATCH, PROMPT, NEW = 2, 20, 6  # more tokens than the windows of 8 hold


def far(a: Any, b: Any) -> float:
    return float((a - b).abs().max())


def changes_with_length(live: Live) -> bool:
    """Whether frequencies depend on how far a text had been read when a key was made."""
    rotary = live.runner.style.rotary
    return rotary is not None and rotary.kind in ("dynamic", "longrope")


@pytest.fixture(params=sorted(MODELS))
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Live, Any]:
    """The reference, ours from the same files, and ids."""
    model = reference(request.param, tmp_path)
    live = load(resolve(str(tmp_path)), "cpu", "float32")
    generator = torch.Generator().manual_seed(1)
    return model, live, torch.randint(1, 97, (BATCH, PROMPT + NEW), generator=generator)


def test_every_family_that_runs_is_tested() -> None:
    assert {kind for kind, _ in MODELS.values()} == set(runnable())


def test_logits_are_the_reference_s(both: tuple[Any, Live, Any]) -> None:
    model, live, ids = both
    with torch.no_grad():
        prefill = model(ids[:, :PROMPT], use_cache=True)
    cache, theirs = live.runner.cache(*ids.shape), prefill.cache
    assert far(live.runner(ids[:, :PROMPT], cache), prefill.logits[:, -1]) < 1e-4
    for t in range(PROMPT, PROMPT + NEW):
        with torch.no_grad():
            step = model(ids[:, t : t + 1], cache=theirs, use_cache=True)
        theirs = step.cache
        assert far(live.runner(ids[:, t : t + 1], cache), step.logits[:, -1]) < 1e-4
    with torch.no_grad():
        whole = model(ids).logits
    assert far(live.runner(ids, live.runner.cache(*ids.shape), every=True), whole) < 1e-4
    in_parts = live.runner.cache(*ids.shape)
    for part in ids.split(7, 1):
        last = live.runner(part, in_parts)
    if not changes_with_length(live):
        assert far(last, whole[:, -1]) < 1e-4


def test_left_padding_changes_nothing(both: tuple[Any, Live, Any]) -> None:
    model, live, ids = both
    pad = torch.ones_like(ids, dtype=torch.bool)
    pad[0, :5] = False
    alone = live.runner(ids[:1, 5:], live.runner.cache(1, PROMPT + NEW - 5))
    cache = live.runner.cache(*ids.shape)
    padded = live.runner(ids, cache, valid=pad)
    if not changes_with_length(live):
        assert far(padded[0], alone[0]) < 1e-4
    positions = (pad.long().cumsum(1) - 1).clamp(min=0)
    extra = {} if live.model.config.family in ("bloom", "mamba") else {"position_ids": positions}
    with torch.no_grad():
        theirs = model(ids, attention_mask=pad.long(), **extra).logits[:, -1]
    assert far(padded, theirs) < 1e-4


def test_bytes_are_those_predicted(both: tuple[Any, Live, Any]) -> None:
    _, live, ids = both
    loaded = live.runner.weights.loaded
    assert loaded.n_bytes + loaded.buffer_bytes == run_bytes(live.runner.anatomy, torch.float32)
    assert live.runner.cache(*ids.shape).n_bytes == cache_bytes(
        live.runner.anatomy, PROMPT + NEW, BATCH, 4
    )
    bound = int(peak_bound(list(walk(live.runner.anatomy, ask(BATCH, PROMPT + NEW))), 4))
    peak = activation_peak(live, ids, None)
    assert bound / 12 < peak <= bound


def test_every_shape_is_the_one_predicted(both: tuple[Any, Live, Any]) -> None:
    _, live, ids = both
    seen = watch(live, ids_tensor(live, ids[:1].tolist())).steps
    steps = list(walk(live.runner.anatomy, ask(1, ids.shape[1])))
    compared = [(s, seen[s.layer, s.slot]) for s in steps if (s.layer, s.slot) in seen]
    assert len(compared) > 0.6 * len(steps)
    for step, measured in compared:
        assert measured.shape == tuple(int(x) for x in step.shape), step
