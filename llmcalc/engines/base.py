"""What an engine is: its versions as rows of rules, its options in its own words, how it samples.

An engine is one module that ends in ``ENGINE = Engine(...)``; a version is one ``Rules`` in its
``versions``. Lists, ``--engine name@version``, refusals and notes derive from these records, and
nothing outside of this package tests an engine's name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from llmcalc.anatomy import Anatomy
from llmcalc.engines.cache import Cache, Load
from llmcalc.formats.element import DType, dtype

Version = tuple[int, ...]
"""The numbers of a version; of a row's end as many count as it has."""
CacheRule = Callable[[Anatomy, Load], Cache]

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Bytes of one rank: exact where low and high are the same, else an estimate between them."""

    name: str
    n_bytes: int
    low: int
    high: int
    why: str

    @property
    def exact(self) -> bool:
        """Whether the number is a count and not an estimate."""
        return self.low == self.high


def counted(name: str, n_bytes: int, why: str) -> Part:
    """A part that is a count: its range is the number itself."""
    return Part(name=name, n_bytes=n_bytes, low=n_bytes, high=n_bytes, why=why)


def estimated(name: str, span: tuple[int, int, int], why: str) -> Part:
    """A part that is an estimate: its middle, what it is at least, what it is at most."""
    middle, low, high = span
    return Part(name=name, n_bytes=middle, low=low, high=high, why=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What working memory depends on: the model, the load, the ranks together, one device's memory.

    ``here`` are the parts that one stage holds, of ``anatomy`` all of the model's. ``sequences``
    are those that the engine makes room for at a time (vLLM's ``max_num_seqs``).
    """

    anatomy: Anatomy
    here: Anatomy
    load: Load
    ranks: int
    sequences: int
    visible: int
    max_context: int
    device: str = ""
    """Its name, in small letters; empty where only its memory is known."""
    utilization: float = 1.0


def is_gb10(device: str) -> bool:
    """Whether it is NVIDIA's GB10, whose start-ups were measured among devices of shared memory."""
    return re.search(r"gb10|dgx-spark|spark", device) is not None


WorkingRule = Callable[[Need], list[Part]]


def no_working_memory(need: Need) -> list[Part]:
    """Nothing beside weights and cache."""
    return []


def no_copies(need: Need) -> int:
    """Nothing beside the weights as their files hold them."""
    return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an engine does from one version to another: a row of its table.

    ``source`` says where the rules were read, ``evidence`` what the estimates of working memory
    were fitted to, None where nothing was measured. ``copies`` are bytes that lie beside the
    weights of a rank because of how this engine lays them out. ``utilization`` is the share of the
    memory that it takes by default; where ``of_the_rest`` it is a share of what weights and working
    memory leave.
    """

    name: str
    source: str
    cache: CacheRule
    since: Version | None = None
    until: Version | None = None
    asked_as: str | None = None
    working: WorkingRule = no_working_memory
    evidence: str | None = None
    copies: Callable[[Need], int] = no_copies
    copies_why: str = ""
    padded: Callable[[Anatomy, int], tuple[int, int] | None] | None = None
    """Bytes that this engine adds to MXFP4 experts on one of so many ranks, least and most."""
    utilization: float = 1.0
    of_the_rest: bool = False
    prints: Callable[[int, Cache, int], int | None] | None = None
    """Tokens that the engine prints for a pool of so many bytes at that context."""

    def covers(self, version: Version) -> bool:
        """Whether a version lies in this row; one without numbers is of no version for sure."""
        if self.since is None and self.until is None:
            return False
        after = self.since is None or version >= self.since
        return after and (self.until is None or version[: len(self.until)] <= self.until)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The order of the stages between logits and the next token, and the rules that differ.

    ``exactly``: a cut to k tokens leaves k and drops ties; ``recent``: penalties look at the last
    ``last_n`` tokens, the prompt's too, where others count the answer alone. ``coldest`` are the
    temperature taken for greedy, and the least that divides. ``above_zero`` must be greater than 0,
    ``inside`` between 0 and 1 and neither of them; ``hints`` say what to do instead of a 0.
    """

    order: tuple[str, ...]
    settings: frozenset[str]
    note: str
    defaults: Mapping[str, float] = field(default_factory=dict)
    exactly: bool = False
    recent: bool = False
    hottest: float | None = None
    coldest: tuple[float, float] | None = None
    above_zero: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    hints: Mapping[str, str] = field(default_factory=dict)


def model_dtype(wide: DType) -> tuple[DType, str | None]:
    """The cache in the model's own dtype."""
    return wide, None


def half_precision(engine: str) -> Callable[[DType], tuple[DType, str | None]]:
    """The cache in 16 bits, whatever the model is in."""

    def choose(wide: DType) -> tuple[DType, str | None]:
        if wide.size <= 2:
            return wide, None
        why = f"{engine} loads a {wide.name} model in 16 bits, and caches so"
        return dtype("float16"), why

    return choose


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine: names, versions from the oldest to the newest, options in its own spelling.

    ``options`` maps our names of settings to the engine's; a setting that is not in it is refused.
    ``by_layers``: it divides a model by layers among devices (llama.cpp), and never a matrix.
    ``reads`` are the formats of files that it loads as they are. ``cache_dtype`` chooses the
    cache's dtype where none is asked for. Before ``oldest`` it was another program, which is not
    described.
    """

    name: str
    versions: tuple[Rules, ...]
    aliases: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    by_layers: bool = False
    runs_encoders: bool = False
    """It loads models that keep nothing, and allocates no cache for them."""
    reads: tuple[str, ...] = ("safetensors", "gguf")
    cache_dtype: Callable[[DType], tuple[DType, str | None]] = model_dtype
    narrow_cache: str = "float8_e4m3fn"
    narrow_weights: tuple[tuple[str, str], ...] = (
        ("weights in fp8", "fp8"),
        ("weights in 4 bits (awq)", "awq"),
    )
    default_sequences: Callable[[str, int], int] | None = None
    """Sequences at a time where none are named, by a device's name and its memory."""
    default_batch: Callable[[str, int, Version | None], int] | None = None
    """Tokens of a batch where none are named, by device and version."""
    default_utilization: Callable[[int, int], float] | None = None
    """The share where none is named and no row has one, by a device's memory and the ranks."""
    wants_its_share_free: bool = False
    """It does not start where others hold some of its share (vLLM's check at start-up)."""
    sampling: Sampling | None = None
    oldest: Version | None = None

    @property
    def newest(self) -> Rules:
        """The newest rules that are known."""
        return self.versions[-1]
