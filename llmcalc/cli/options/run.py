"""Where and how a model is run: options that every command with ``--live`` has in these words."""

from __future__ import annotations

from typing import Annotated

import typer

RunOn = Annotated[
    str,
    typer.Option("--run-on", "--device", help="With --live: auto, cpu, cuda, cuda:1 or mps."),
]
RunOnBeside = Annotated[str, typer.Option("--run-on", help="With --live: auto, cpu, cuda, mps.")]
"""The same where ``--device`` names the hardware that is asked about."""

RunDtype = Annotated[
    str | None,
    typer.Option("--run-dtype", "--dtype", help="Format to run in; default: the checkpoint's."),
]
