"""The option for the format of a model's weights."""

from __future__ import annotations

from llmcalc.formats.scheme import SCHEMES

WEIGHTS_HELP = f"A dtype, {', '.join(SCHEMES)}, or a GGUF file type: q4_k_m. Default: the model's."
