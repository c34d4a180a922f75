"""What ``trace`` can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from llmcalc.cli.options.run import RunDtype, RunOn
from llmcalc.errors import InputError


@dataclass(frozen=True)
class LiveOptions:
    """Running the model."""

    live: Annotated[bool, typer.Option("--live", help="Run it: the same rows, measured.")] = False
    prompt: Annotated[str | None, typer.Option("--prompt", help="Text to run.", metavar="TEXT")] = (
        None
    )
    ids: Annotated[
        str | None,
        typer.Option("--ids", help="Token ids to run instead of a prompt.", metavar="ID,..."),
    ] = None
    pad_left: Annotated[
        int, typer.Option("--pad-left", help="Padding before the text; it must change nothing.")
    ] = 0
    device: RunOn = "auto"
    dtype: RunDtype = None
    stream_layers: Annotated[
        bool,
        typer.Option(
            "--stream-layers", help="Hold one layer at a time: for models larger than memory."
        ),
    ] = False
    tp: Annotated[
        int,
        typer.Option(
            "--tp", help="Processes that share the model: torchrun --nproc-per-node N.", min=1
        ),
    ] = 1
    top: Annotated[int, typer.Option("--top", help="Next tokens to show.")] = 5
    attention: Annotated[
        str | None,
        typer.Option("--attention", help="Draw one head's weights.", metavar="LAYER.HEAD"),
    ] = None
    logit_lens: Annotated[
        bool, typer.Option("--logit-lens", help="The likeliest next token after each layer.")
    ] = False
    qkv: Annotated[
        str | None,
        typer.Option(
            "--qkv", help="Print the small matrices of one layer's attention.", metavar="LAYER"
        ),
    ] = None

    def given(self) -> list[str]:
        """Options that mean nothing without --live."""
        flags = {
            "--prompt": self.prompt,
            "--ids": self.ids,
            "--pad-left": self.pad_left,
            "--tp": self.tp > 1,
            "--stream-layers": self.stream_layers,
            "--attention": self.attention,
            "--logit-lens": self.logit_lens,
            "--qkv": self.qkv,
        }
        return [flag for flag, value in flags.items() if value]


_BY_HAND = (
    "A small calculation, on its own numbers or on yours: attention, layernorm, rmsnorm, gelu,"
    " cosine, residual, shortcuts, neuron, gradient-step, positions, dropout, matmul."
)


@dataclass(frozen=True)
class CourseOptions:
    """Small calculations, matrix by matrix."""

    toy: Annotated[
        bool, typer.Option("--toy", help="A model of eight words and width 4: every matrix.")
    ] = False
    mlp: Annotated[
        bool,
        typer.Option("--mlp", help="With --toy: an MLP in every layer; --layers says how many."),
    ] = False
    norm: Annotated[
        bool, typer.Option("--norm", help="With --toy: LayerNorm before everything.")
    ] = False
    backward: Annotated[
        bool, typer.Option("--backward", help="With --toy: gradient, and an AdamW step.")
    ] = False
    std: Annotated[
        float | None, typer.Option("--std", help="With --toy: spread of the weights.  [0.02]")
    ] = None
    seed: Annotated[
        int | None, typer.Option("--seed", help="With --toy: seed of the weights.  [0]")
    ] = None
    attention_by_hand: Annotated[
        str | None,
        typer.Option(
            "--attention-by-hand", help="Attention on the matrices in a JSON file.", metavar="FILE"
        ),
    ] = None
    by_hand: Annotated[
        str | None, typer.Option("--by-hand", help=_BY_HAND, metavar="NAME|JSON|FILE")
    ] = None

    def given(self) -> bool:
        """Whether one of them is asked for; what goes with --toy alone is an error without it."""
        extras = (self.backward, self.mlp, self.norm, self.std is not None, self.seed is not None)
        if not self.toy and any(extras):
            raise InputError("--mlp, --norm, --backward, --std and --seed go with --toy")
        asked = [self.toy, self.attention_by_hand is not None, self.by_hand is not None]
        if sum(asked) > 1:
            raise InputError("--toy, --attention-by-hand and --by-hand are one calculation each")
        return any(asked)
