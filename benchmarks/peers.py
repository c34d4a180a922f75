"""llmcalc beside other calculators on eight models: what each answers, its seconds, its reads.

Run it with ``python -m benchmarks.peers`` from the checkout, and name the others' environment in
``PEERS``: ``PEERS=/path/to/venv/bin``; a calculator that is not there is skipped with a line. The
hub is the tests' own, on loopback. Its models are configs with the published sizes and shards with
true headers over holes: no weights.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from llmcalc.families import anatomy, config_for
from llmcalc.formats import recipe
from llmcalc.formats.scheme import full_name
from llmcalc.sources import presets
from llmcalc.sources.names import promised
from llmcalc.units import size
from tests.sources.fake_hub import Hub, serving

RUNS, LIMIT_SECONDS, CONTEXT = 3, 120.0, 8192
SHARD_BYTES = 5_000_000_000
SAFETENSORS = {"float8_e4m3fn": "F8_E4M3", "float32": "F32", "uint8": "U8"}
BYTES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1}

Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""Name to dtype and shape."""


@dataclass(frozen=True)
class Published:
    """A model of the hub: the bytes of its tensors, and what its config has beside the preset's."""

    hub_id: str
    preset: str
    n_bytes: int
    architecture: str
    more: Mapping[str, Any] = field(default_factory=dict)


_FP8 = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [128, 128],
}
_DEEPSEEK = {
    "auto_map": {
        "AutoConfig": "configuration_deepseek.DeepseekV3Config",
        "AutoModel": "modeling_deepseek.DeepseekV3Model",
        "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
    },
    "quantization_config": _FP8,
}
_ALTERNATING = {"layer_types": ["sliding_attention", "full_attention"] * 12}
MODELS = (
    Published("openai-community/gpt2", "gpt2", 548_090_880, "GPT2LMHeadModel"),
    Published("meta-llama/Meta-Llama-3-8B", "llama-3-8b", 16_060_522_496, "LlamaForCausalLM"),
    Published("mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1", 14_483_464_192, "MistralForCausalLM"),
    Published("mistralai/Mixtral-8x7B-v0.1", "mixtral-8x7b", 93_405_585_408, "MixtralForCausalLM"),
    Published("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b", 61_064_245_248, "Qwen3MoeForCausalLM"),
    Published(
        "google/gemma-3-27b-it", "gemma-3-27b", 54_864_813_280, "Gemma3ForConditionalGeneration"
    ),
    Published(
        "openai/gpt-oss-20b", "gpt-oss-20b", 13_761_264_768, "GptOssForCausalLM", _ALTERNATING
    ),
    Published(
        "deepseek-ai/DeepSeek-V3",
        "deepseek-v3",
        688_574_839_360,
        "DeepseekV3ForCausalLM",
        _DEEPSEEK,
    ),
)


def config_of(model: Published) -> dict[str, Any]:
    """The preset's sizes, and what the published config states beside them."""
    sizes = {k: v for k, v in presets.load(model.preset).items() if not k.startswith("_")}
    return {"architectures": [model.architecture], **sizes, **model.more}


def tensors_of(model: Published) -> Tensors:
    """Every tensor of the published files: quantised as they lie, buffers, prediction layers."""
    raw, found = config_of(model), Tensors()
    quantised = raw.get("quantization_config") or {}
    method = quantised.get("quant_method", "")
    packed = recipe.read(quantised, "bfloat16") if quantised else None
    plain = "F32" if model.preset == "gpt2" else "BF16"
    for name, want in promised(anatomy(config_for(raw))).items():
        if want.weight.tied_to:
            continue
        ends = ("up_proj", "down_proj")
        here = "_proj" in name if method == "fp8" else name.endswith(ends)
        layout = packed.of(want.weight, name) if packed is not None and here else None
        if layout is not None:
            stack = (int(want.weight.experts),) if want.weight.stacked else ()
            for ending, piece in layout(want.weight.inputs, want.weight.outputs).items():
                shape = (*stack, *(int(n) for n in piece.shape))
                found[full_name(name, ending)] = (SAFETENSORS[piece.dtype], shape)
        else:
            found[name] = ("F32" if want.weight.buffer else plain, want.shape)
    if model.preset == "gpt2":  # its masks are in the file
        found |= {f"h.{i}.attn.bias": ("F32", (1, 1, 1024, 1024)) for i in range(12)}
    if model.preset == "deepseek-v3":  # a layer more, which predicts the token after the next
        last, d = raw["num_hidden_layers"], raw["hidden_size"]
        own, more = f"model.layers.{last - 1}.", f"model.layers.{last}."
        found |= {more + n.removeprefix(own): t for n, t in found.items() if n.startswith(own)}
        shapes = {"enorm": (d,), "hnorm": (d,), "eh_proj": (d, 2 * d), "shared_head.norm": (d,)}
        shapes |= dict.fromkeys(("embed_tokens", "shared_head.head"), (raw["vocab_size"], d))
        found |= {f"{more}{n}.weight": ("BF16", shape) for n, shape in shapes.items()}
    return found


def fill(folder: Path, model: Published) -> None:
    """A repository: the config, and shards of at most 5 GB whose data are holes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_of(model), indent=2))
    shards, room = list[Tensors](), 0
    for name, (dtype, shape) in sorted(tensors_of(model).items(), key=lambda item: _place(item[0])):
        n_bytes = BYTES[dtype] * prod(shape)
        if n_bytes > room:
            shards.append({})
            room = SHARD_BYTES
        shards[-1][name] = (dtype, shape)
        room -= n_bytes
    total = sum(BYTES[dtype] * prod(shape) for shard in shards for dtype, shape in shard.values())
    assert total == model.n_bytes, (model.hub_id, total)
    places = dict[str, str]()
    for i, shard in enumerate(shards, 1):
        file = (
            f"model-{i:05}-of-{len(shards):05}.safetensors"
            if len(shards) > 1
            else "model.safetensors"
        )
        write(folder / file, shard)
        places |= dict.fromkeys(shard, file)
    if len(shards) > 1:
        index = {"metadata": {"total_size": model.n_bytes}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))


def _place(name: str) -> tuple[int, str]:
    """Layer by layer, as published shards are cut; what is outside the layers first."""
    found = re.search(r"\.(\d+)\.", name)
    return int(found[1]) if found else -1, name


def write(path: Path, tensors: Tensors) -> None:
    """A safetensors file: its true header, and a hole for its data."""
    header, end = dict[str, object](), 0
    for name, (dtype, shape) in tensors.items():
        begin, end = end, end + BYTES[dtype] * prod(shape)
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)


@dataclass(frozen=True)
class Answer:
    """What a calculator says, in its own words where it rounds; empty where it does not say it."""

    params: str = ""
    weights: str = ""
    cache: str = ""


@dataclass(frozen=True)
class Tool:
    """A calculator: its distribution, its command line behind ``python``, its answer's reader."""

    name: str
    package: str
    words: Callable[[Published, Path], list[str]]
    read: Callable[[str], Answer]


HF_MEM = """
import os, httpx2
from hf_mem.cli import main
build = httpx2.AsyncClient.build_request
httpx2.AsyncClient.build_request = lambda self, method, url, **more: build(
    self, method, str(url).replace("https://huggingface.co", os.environ["HF_ENDPOINT"]), **more)
main()
"""
"""hf-mem has the hub's address in its code; nothing else of it is changed."""

MODELINFO = """
import os, sys
from modelinfo.parsers import huggingface
huggingface._get_hf_endpoint = lambda: os.environ["HF_ENDPOINT"]
from modelinfo.cli import main
sys.exit(main())
"""
"""modelinfo refuses a hub without TLS; nothing else of it is changed."""


def _ours(command: str, *more: str) -> Callable[[Published, Path], list[str]]:
    return lambda model, folder: ["-m", "llmcalc", command, model.hub_id, *more, "--json"]


def _hf_mem(model: Published, folder: Path) -> list[str]:
    words = [
        "-c",
        HF_MEM,
        "--model-id",
        model.hub_id,
        "--experimental",
        "--max-model-len",
        str(CONTEXT),
    ]
    words += ["--json-output", "--details"]
    return words + (
        ["--kv-cache-dtype", "bfloat16"] if "gpt-oss" in model.preset else []
    )  # refused otherwise


def _modelinfo(*more: str) -> Callable[[Published, Path], list[str]]:
    return lambda model, folder: ["-c", MODELINFO, model.hub_id, "--context", str(CONTEXT), *more]


def _read_hf_mem(text: str) -> Answer:
    told = json.loads(text)
    params = sum(part["param_count"] for part in told["memory"]["components"].values())
    cache = told["kv_cache"]
    return Answer(
        f"{params:,}", size(told["memory"]["bytes"]), size(cache["bytes"]) if cache else ""
    )


def _read(
    params: str = "", weights: str = "", cache: str = "", unit: str = ""
) -> Callable[[str], Answer]:
    """A reader of text: one pattern per number, and the unit that the table's heading has."""

    def found(pattern: str, text: str, unit: str) -> str:
        match = re.search(pattern, text) if pattern else None
        return match[1].strip() + unit if match else ""

    return lambda text: Answer(
        found(params, text, ""), found(weights, text, unit), found(cache, text, unit)
    )


_INFO = _read(r"Parameters: +([\d,]+)", r"Weights: +([\d.]+ \w+)", r"KV Cache: +([\d.]+ \w+)")
_ROW = r"│ +[BF][PF]16 +│ +"
TOOLS = (
    Tool(
        "llmcalc params",
        "llmcalc",
        _ours("params"),
        lambda t: Answer(f"{_fact(t, 'total_params'):,}"),
    ),
    Tool(
        "llmcalc check",
        "llmcalc",
        _ours("check"),
        lambda t: Answer("", size(_fact(t, "stored_bytes"))),
    ),
    Tool(
        "llmcalc kvcache",
        "llmcalc",
        _ours("kvcache", "--ctx", str(CONTEXT)),
        lambda t: Answer("", "", size(_fact(t, "kv_bytes"))),
    ),
    Tool(
        "accelerate",
        "accelerate",
        lambda model, folder: [
            "-m",
            "accelerate.commands.accelerate_cli",
            "estimate-memory",
            model.hub_id,
        ],
        _read(weights=r"float16│[^│]*│([^│]*)│"),
    ),
    Tool("hf-mem", "hf-mem", _hf_mem, _read_hf_mem),
    Tool("modelinfo", "modelinfo-cli", _modelinfo(), _INFO),
    Tool("modelinfo --tensors", "modelinfo-cli", _modelinfo("--tensors"), _INFO),
    Tool(
        "hf-vram-calc",
        "hf-vram-calc",
        lambda model, folder: [
            "-m",
            "hf_vram_calc.cli",
            "--model",
            model.hub_id,
            "--max_seq_len",
            str(CONTEXT),
        ],
        _read(
            r"Parameters: ([\d,]+)",
            _ROW + r"([\d.]+) │",
            _ROW + r"[\d.]+ │ +[\d.]+ │ +([\d.]+) │",
            unit=" GiB",
        ),
    ),
    Tool(
        "llm-mem",
        "llm-mem",
        lambda model, folder: ["-m", "llm_mem.cli", "-m", model.hub_id, "-c", str(CONTEXT)],
        _read(weights=r"Model VRAM: ([\d.]+ GB)", cache=r"Context VRAM: ([\d.]+ GB)"),
    ),
    Tool(
        "llm-mem-planner",
        "llm-mem-planner",
        lambda model, folder: [
            *("-m", "llm_mem_planner", "--seq-len", str(CONTEXT), "--out-md", os.devnull),
            *("--config", str(folder / "config.json")),
        ],
        _read(r"TOTAL: +([\d.]+B)", r"weights_unique: ([\d.]+ GiB)", r"kv_unique=([\d.]+ GiB)"),
    ),
)


def _fact(text: str, name: str) -> int:
    return int(json.loads(text)["facts"][name])


@dataclass(frozen=True)
class Measured:
    """One calculator on one model: its answer or why there is none, and what its best run cost."""

    answer: Answer
    failed: str
    seconds: float
    cpu_seconds: float
    sent_bytes: int
    requests: int


def measure(tool: Tool, python: str, model: Published, hub: Hub) -> Measured:
    """The quickest of the runs, each with an empty cache; a run that fails is not repeated."""
    runs = list[Measured]()
    while len(runs) < RUNS and not (runs and runs[-1].failed):
        with tempfile.TemporaryDirectory() as home:
            before, asked = hub.sent, sum(hub.asked.values())
            command = [python, *tool.words(model, hub.root / model.hub_id)]
            code, out, err, seconds, cpu = run(command, hub.url, home)
            answer = Answer()
            if code in (0, 1):  # llmcalc check ends with 1 where it finds a difference
                with suppress(ValueError, KeyError, TypeError):
                    answer = tool.read(out)
            reason = " ".join((err.strip() or out.strip() or "no answer").splitlines()[-1].split())
            failed = "" if answer != Answer() else reason
            runs.append(
                Measured(
                    answer, failed, seconds, cpu, hub.sent - before, sum(hub.asked.values()) - asked
                )
            )
    return min(runs, key=lambda r: (bool(r.failed), r.seconds))


def run(command: list[str], url: str, home: str) -> tuple[int, str, str, float, float]:
    """A process with its own home: exit code, output, errors, seconds, and those on a CPU."""
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "COLUMNS": "160",
        "NO_COLOR": "1",
        "HOME": home,
    }
    env |= {"HF_ENDPOINT": url, "HF_HOME": home + "/hf", "LLMCALC_CACHE_DIR": home + "/kept"}
    env |= {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    begun, before = time.perf_counter(), _cpu()
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=env,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, "", f"more than {LIMIT_SECONDS:.0f} s", LIMIT_SECONDS, _cpu() - before
    return done.returncode, done.stdout, done.stderr, time.perf_counter() - begun, _cpu() - before


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def installed(python: str) -> dict[str, str]:
    """The versions of the calculators in an environment, and of what their answers rest on."""
    names = sorted({tool.package for tool in TOOLS} | {"torch", "transformers", "huggingface_hub"})
    code = (
        "import importlib.metadata as m, json, sys\nfound = {d.metadata['Name'].lower(): d.version"
        " for d in m.distributions() if d.metadata['Name']}\nprint(json.dumps({n: found[n] for n in"
        " sys.argv[1:] if n in found}))"
    )
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


Results = dict[tuple[str, str], Measured]
"""By model and tool."""

TABLES: tuple[tuple[str, Callable[[Measured], str]], ...] = (
    ("parameters", lambda m: m.answer.params),
    ("weights", lambda m: m.answer.weights),
    (f"cache of {CONTEXT:,} tokens", lambda m: m.answer.cache),
    (f"seconds, best of {RUNS} (on a CPU)", lambda m: f"{m.seconds:.2f} ({m.cpu_seconds:.2f})"),
    ("kB from the hub in requests", lambda m: f"{m.sent_bytes / 1e3:,.1f} in {m.requests}"),
)


def show(results: Results) -> None:
    """The tables in Markdown, each with the calculators that answer its question; what failed."""
    names = list(dict.fromkeys(tool for _, tool in results))
    for title, cell in TABLES:
        asked = [
            n
            for n in names
            if any(not m.failed and cell(m) for (_, t), m in results.items() if t == n)
        ]
        print(f"\n| {title} | {' | '.join(asked)} |\n|---|{'---:|' * len(asked)}")
        for model in MODELS:
            found = [results[model.preset, name] for name in asked]
            print(
                f"| {model.preset} |"
                f" {' | '.join('failed' if m.failed else cell(m) or '-' for m in found)} |"
            )
    print()
    for (model_name, tool_name), measured in results.items():
        if measured.failed:
            print(
                f"{tool_name} of {model_name}: {measured.failed[:300]} ({measured.seconds:.1f} s)"
            )


def main() -> int:
    """Prints the tables of every calculator that is there."""
    theirs = Path(os.environ["PEERS"]) / "python" if os.environ.get("PEERS") else None
    versions = installed(str(theirs)) if theirs and theirs.exists() else {}
    pythons = {"llmcalc": sys.executable, **dict.fromkeys(versions, str(theirs))}
    print(f"ours: {installed(sys.executable)}\ntheirs: {versions}")
    for package in sorted({tool.package for tool in TOOLS} - set(pythons)):
        print(f"skipped: {package} is not in PEERS={os.environ.get('PEERS', '')}")
    results = Results()
    with tempfile.TemporaryDirectory() as place:
        for model in MODELS:
            fill(Path(place) / model.hub_id, model)
        with serving(Path(place)) as hub:
            for model in MODELS:
                for tool in TOOLS:
                    if tool.package in pythons:
                        results[model.preset, tool.name] = measure(
                            tool, pythons[tool.package], model, hub
                        )
    show(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
