"""OpenAI's API: nothing of its memory is public, its sampling parameters are."""

from __future__ import annotations

from llmcalc.engines.base import Engine, Sampling

ENGINE = Engine(
    name="openai",
    versions=(),
    sampling=Sampling(
        order=("bias", "frequency", "temperature", "top-p"),
        settings=frozenset(
            ("logit_bias", "frequency_penalty", "presence_penalty", "temperature", "top_p")
        ),
        note=(
            "OpenAI documents the parameters and not their order: "
            "temperature before top-p is assumed"
        ),
        hottest=2,
    ),
)
