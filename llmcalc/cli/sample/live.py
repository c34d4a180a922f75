"""``sample`` on a real model: the logits of one step, or a text token by token."""

from __future__ import annotations

import codecs
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from llmcalc.cli.output.view import Column, Fact, View
from llmcalc.cli.prompts import label, prompt_ids
from llmcalc.cli.sample import table as sample_view
from llmcalc.errors import InputError
from llmcalc.live.device import name_of
from llmcalc.live.generate import generate
from llmcalc.live.load import Live, load
from llmcalc.live.trace import ids_tensor
from llmcalc.sampling.candidates import Candidates
from llmcalc.sampling.draw import draws
from llmcalc.sampling.engines import Engine, run
from llmcalc.sampling.settings import Settings
from llmcalc.sources import resolve
from llmcalc.sources.json_file import read_json
from llmcalc.text import safe
from llmcalc.tokens.base import Tokenizer
from llmcalc.units import exact

if TYPE_CHECKING:
    from llmcalc.cli.sample.options import GenerateOptions


def _load(options: GenerateOptions) -> tuple[Live, list[int], Tokenizer | None]:
    live = load(resolve(options.model or "toy"), options.device, options.dtype)
    ids, tokenizer = prompt_ids(live, options.prompt, options.ids)
    return live, ids, tokenizer


def one_step(options: GenerateOptions, engine: Engine, target: str | None) -> sample_view.Subject:
    """The logits after the prompt, with the tokens' names."""
    if options.stop:
        raise InputError("--stop goes with --steps")
    live, ids, tokenizer = _load(options)
    prompt = ids_tensor(live, [ids])  # (1, T)
    logits = live.runner(prompt, live.runner.cache(1, len(ids)))[0]  # (V)
    numbers = _numbers(logits)
    names = [label(tokenizer, i) for i in range(len(numbers))]
    return sample_view.subject(numbers, name_of(live.dtype), names, engine, target)


def _numbers(logits: torch.Tensor) -> Any:
    """Logits (V) as float64 of numpy."""
    wide = logits.double().cpu().numpy()
    if not math.isfinite(float(wide.max())):
        raise InputError(
            "the model's logits are not finite",
            hint="--run-dtype float32, or `llmcalc trace --live` to see where",
        )
    return wide


@dataclass(slots=True)
class _Writer:
    """Text as it comes, to a terminal or a pipe: whole characters only."""

    tokenizer: Tokenizer | None
    on: bool
    text: str = ""
    _decoder: Any = None

    def __post_init__(self) -> None:
        # a token may end within a character
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int, last: bool = False) -> None:
        """One more token."""
        piece = self.tokenizer.piece(token) if self.tokenizer is not None else f" {token}".encode()
        new = self._decoder.decode(piece, last)
        self.text += new
        if self.on:
            sys.stdout.write(safe(new, keep="\n\t"))
            sys.stdout.flush()


def many_steps(
    options: GenerateOptions, engine: Engine, settings: Settings, greedy: bool
) -> View | None:
    """Generation, one row per token; None where the text was streamed instead."""
    steps = options.steps if options.steps is not None else 50
    if settings.mirostat and steps > 1:
        raise InputError(
            "mirostat's aim moves from step to step, which --steps does not follow yet"
        )
    live, ids, tokenizer = _load(options)
    ends = stop_ids(live, tokenizer)
    writer = _Writer(tokenizer, options.stream)
    rows: list[dict[str, Any]] = []
    reason = f"{steps} steps"

    def choose(logits: torch.Tensor, so_far: Sequence[int]) -> int:
        now = replace(settings, prompt=tuple(ids), output=tuple(so_far))
        raw = Candidates.of(_numbers(logits))
        path = run(engine, now, raw, logits.numel())
        end = path[-1][1] if path else raw
        if greedy or settings.temperature == 0:
            chosen = end.greedy
        else:
            chosen = int(draws(end, 1, settings.seed + len(so_far))[0])
        rows.append(_row(len(so_far), chosen, raw, end, tokenizer))
        return chosen

    for made in generate(live, ids, steps, choose):
        rows[-1]["seconds"] = made.seconds
        if made.token in ends:
            reason = f"stop token {label(tokenizer, made.token)}"
            break
        writer.add(made.token)
        found = next((text for text in options.stop or () if text in writer.text), None)
        if found is not None:
            reason = f"the text {found!r}"
            break
    if options.stream:
        print()
        return None
    return _view(live, ids, rows, writer.text, reason, engine)


def stop_ids(live: Live, tokenizer: Tokenizer | None) -> set[int]:
    """Tokens that end an answer.

    Those of generation_config.json and config.json, or of a GGUF's metadata.
    """
    found: set[int] = set()
    model = live.model
    places: list[Any] = [model.raw or {}]
    if model.folder is not None and (model.folder / "generation_config.json").is_file():
        places.append(read_json(model.folder / "generation_config.json"))
    if model.header is not None and model.header.format == "gguf":
        places.append({"eos_token_id": model.header.metadata.get("tokenizer.ggml.eos_token_id")})
    for place in places:
        value = place.get("eos_token_id")
        values = value if isinstance(value, list) else [value]
        found |= {v for v in values if isinstance(v, int) and not isinstance(v, bool)}
    return found


def _row(
    step: int, token: int, raw: Candidates, end: Candidates, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    """What is told of one token: its probabilities, and the three likeliest others."""
    probabilities = end.probabilities
    likeliest = probabilities.argsort()[::-1][:4]
    others = [at for at in likeliest if int(end.ids[at]) != token][:3]
    runners_up = []
    for at in others:
        other = int(end.ids[at])
        probability = float(probabilities[at])
        runners_up.append(
            {"id": other, "label": label(tokenizer, other), "probability": probability}
        )
    return {
        "step": step,
        "id": token,
        "label": label(tokenizer, token),
        "probability": float(end.probability(token)),
        "model_probability": float(raw.probability(token)),
        "entropy": raw.entropy,
        "n_kept": int(end.ids.size),
        "runners_up": runners_up,
        "seconds": None,
    }


def _view(
    live: Live,
    ids: Sequence[int],
    rows: list[dict[str, Any]],
    text: str,
    reason: str,
    engine: Engine,
) -> View:
    """Every token that was generated, and how fast."""
    after_first = sum(r["seconds"] for r in rows[1:] if r["seconds"])
    rate = (len(rows) - 1) / after_first if after_first else None
    facts = [
        Fact("text", text, "text", lambda t: json.dumps(t, ensure_ascii=False)),
        Fact("ids", [r["id"] for r in rows]),
        Fact("prompt_tokens", len(ids), "prompt tokens", exact),
        Fact("new_tokens", len(rows), "new tokens", exact),
        Fact("stopped_by", reason, "ended by"),
        Fact("seconds_to_first_token", rows[0]["seconds"], "first token", lambda s: f"{s:.4f} s"),
        Fact("tokens_per_second", rate, "then", lambda r: f"{r:.1f} tokens/s"),
        Fact("device", str(live.device), "device"),
        Fact("dtype", name_of(live.dtype), "run in"),
    ]
    said = [*live.notes, engine.rules.note]
    if live.model.name == "toy":
        said.insert(0, "a toy model of 64 characters: its text is a toy's")
    model = {
        "name": live.model.name,
        "family": live.model.anatomy.family,
        "source": live.model.source,
    }
    return View(
        kind="sample/1",
        title=f"{live.model.name}: {len(rows)} tokens",
        columns=_COLUMNS,
        rows=rows,
        facts=facts,
        notes=said,
        model=model,
    )


def _runners(found: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{r['label']} {r['probability']:.3f}" for r in found) or "-"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


_COLUMNS = (
    Column("step", "step", exact, right=True),
    Column("id", "id", exact, right=True),
    Column("label", "token"),
    Column("probability", "p", lambda p: f"{p:.4f}", right=True),
    Column("model_probability", "p before", lambda p: f"{p:.4f}", right=True),
    Column("entropy", "entropy", lambda h: f"{h:.3f}", right=True),
    Column("n_kept", "kept", exact, right=True),
    Column("runners_up", "runners-up", _runners),
    Column("seconds", "ms", _milliseconds, right=True),
)
