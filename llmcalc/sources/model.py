"""Model: what a user named, as one record, wherever it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmcalc.anatomy import Anatomy, Mixer
from llmcalc.config import Config
from llmcalc.errors import ConfigError, InputError
from llmcalc.families import UnknownFamilyError, anatomy, config_for, inside
from llmcalc.formats.element import DType, dtype
from llmcalc.sources.header import Header
from llmcalc.text import shorten

if TYPE_CHECKING:
    from llmcalc.sources.adapters import Adapter

JOBS = 32
"""Files of a far model whose headers are read at once."""


@dataclass(frozen=True)
class Model:
    """What a user named: a raw config, the header of a checkpoint, or both."""

    name: str
    source: str
    raw: Mapping[str, Any] | None = None
    header: Header | None = None
    notes: tuple[str, ...] = ()
    blocks_only: bool = False
    mixers_only: bool = False
    """Only what the layers keep is asked for: sizes that it does not depend on may be made up."""
    with_mtp: bool = False
    """Its modules of multi-token prediction are counted with it."""
    described: Anatomy | None = None
    """Its parts, where no config describes them."""
    folder: Path | None = None
    """Where its files lie, for whoever reads more of them than the header."""
    fetch: Callable[[int, Callable[[int, int], None]], Header] | None = None
    """What reads the header from where the model is, where that is far away: by so many connections
    at once, telling how many files are through.
    """

    fetch_file: Callable[[str], Path | None] | None = None
    """What brings one more file of it here, None where it has no such file."""

    fetch_vocabulary: Callable[[], Mapping[str, Any]] | None = None
    """What brings the tokenizer's metadata of a far GGUF."""

    pipeline: str | None = None
    """The class of a diffusers pipeline, which has weights and no language model."""

    adapter: Adapter | None = None
    """What it adds to another model, where it is no model of its own."""

    def with_header(
        self, jobs: int = JOBS, tell: Callable[[int, int], None] = lambda done, of: None
    ) -> Model:
        """The model with its header, fetched where it has none yet."""
        if self.header is not None or self.fetch is None:
            return self
        header = self.fetch(jobs, tell)
        return replace(self, header=header, notes=(*self.notes, *header.notes))

    @cached_property
    def is_described(self) -> bool:
        """Whether a family is known for its config: else a checkpoint is counted by its tensors."""
        if self.raw is None:
            return False
        try:
            config_for(self.raw)
        except UnknownFamilyError:
            return False
        return True

    @cached_property
    def config(self) -> Config:
        """The sizes, with the family's class defaults."""
        if self.adapter is not None:
            base = self.adapter.base or "its base"
            raise InputError(
                f"{self.name} is an adapter, no model of its own",
                hint=f"name its base: {shorten(base)}",
            )
        if self.raw is None:
            raise InputError(
                f"{self.name} has no config, only tensors",
                hint="name a directory that holds a config.json",
            )
        return config_for(self.raw)

    @property
    def sections(self) -> tuple[Mapping[str, Any], ...]:
        """The config's top level, and the language model's part inside where there is one."""
        raw = self.raw or {}
        within = inside(raw)
        return (raw,) if within is None else (raw, within[1])

    @property
    def named_dtype(self) -> DType | None:
        """The dtype that the config names, in either spelling; None where it names none."""
        for section in self.sections:
            for key in ("dtype", "torch_dtype"):
                value = section.get(key)
                if isinstance(value, str) and value not in ("auto", ""):
                    return dtype(value)
        return None

    @property
    def dtype(self) -> DType:
        """The dtype that the config names, else bfloat16."""
        return self.named_dtype or dtype("bfloat16")

    @property
    def wide(self) -> DType:
        """What is not quantised is stored in: the config's dtype where that has 16 bits or more."""
        own = self.dtype
        return own if own.block == 1 and own.size > 1 else dtype("bfloat16")

    @property
    def quantisation(self) -> Mapping[str, Any] | None:
        """What the config says of its weights' packing."""
        for section in self.sections:
            # MLX has a key of its own, and newer versions both
            for key in ("quantization_config", "quantization", "compression_config"):
                settings = section.get(key)
                if isinstance(settings, Mapping) and settings:
                    return settings
        return None

    @property
    def called(self) -> str:
        """What its config calls its architecture, whether a family is known for it or not."""
        named = (self.raw or {}).get("model_type") or (self.raw or {}).get("architectures")
        first = named[0] if isinstance(named, list) and named else named
        return shorten(first, 60) if isinstance(first, str) and first else self.name

    @property
    def about(self) -> dict[str, Any]:
        """The model's entry in JSON."""
        if self.is_described:
            family: str | None = self.config.family
        elif self.raw is not None:
            family = self.called
        else:
            family = self.header.architecture if self.header is not None else None
        return {"name": self.name, "family": family, "source": self.source}

    @property
    def longest_context(self) -> int | None:
        """The longest context that the model was made for, by its config or the one inside it."""
        if self.raw is None and self.header is not None:
            longest = self.header.metadata.get(f"{self.header.architecture}.context_length")
            return longest if isinstance(longest, int) and longest > 0 else None
        if self.raw is None or self.blocks_only:
            return None
        within = inside(self.raw)
        configs = [self.config if self.is_described else Config(self.raw)]
        configs += [Config(within[1])] if within is not None else []
        for config in configs:
            found = config.optional("max_context")
            if found is not None:
                return int(found)
        return None

    @cached_property
    def anatomy(self) -> Anatomy:
        """The list of parts, those of multi-token prediction among them where they are asked for.

        What the layers of a GGUF keep is read from the file itself.
        """
        whole = self._anatomy()
        if not self.with_mtp:
            return whole
        if not whole.predicting:
            raise InputError(
                f"{self.name}: no module of multi-token prediction is known for it",
                hint="a checkpoint's header counts all its tensors: llmcalc params FILE",
            )
        parts, said = (*whole.parts, *whole.predicting), "with multi-token prediction"
        return replace(whole, parts=parts, notes=(*whole.notes, said), predicting=())

    def _anatomy(self) -> Anatomy:
        if self.described is not None:
            return self.described
        if self.pipeline is not None:
            raise InputError(
                f"{self.name} is a diffusers pipeline ({self.pipeline}): caches, steps and text do"
                " not apply to it",
                hint="`llmcalc params` counts the weights of all its components",
            )
        from_file = self.header is not None and self.header.format == "gguf"
        if self.raw is None and self.header is not None and from_file:
            from llmcalc.sources import gguf_layers

            return gguf_layers.anatomy(self.header)
        if self.adapter is None and not self.is_described:
            found = self.with_header()
            if found.header is not None:
                from llmcalc.sources import counted

                return counted.anatomy(self.called, found.header)
        try:
            whole = anatomy(self.config)
        except ConfigError as error:
            if self.source != "flags":
                raise
            flag = f"--{error.lacks[1].replace('_', '-')}" if error.lacks else ""
            said = f"{flag} is not given" if flag else str(error)
            hint = "sizes are --d, --layers, --heads, --kv-heads, --head-dim, --d-ff, --vocab"
            raise ConfigError(said, hint=hint, lacks=error.lacks) from None
        if self.header is not None and from_file:
            from llmcalc.sources import gguf_layers

            whole = gguf_layers.as_kept(whole, self.header)
        else:
            header = self.with_header().header if whole.uncounted else self.header
            if header is not None:
                from llmcalc.sources import held

                whole = held.as_held(whole, header, self.folder)
        if self.mixers_only:
            return replace(whole, parts=whole.mixers)
        if not self.blocks_only:
            return whole
        return replace(
            whole, parts=tuple(p for p in whole.parts if isinstance(p, Mixer) or p.in_stack)
        )
