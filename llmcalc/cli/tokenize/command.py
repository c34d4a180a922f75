"""``llmcalc tokenize``: text to ids, under any tokenizer, and how many there are."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from llmcalc.cli.options.model import OutputOptions, count_in, takes
from llmcalc.cli.output.write import write
from llmcalc.cli.tokenize.options import CountOptions, TokenOptions
from llmcalc.errors import InputError, UnavailableError
from llmcalc.text import shorten
from llmcalc.units import exact

if TYPE_CHECKING:
    from llmcalc.cli.output.view import View
    from llmcalc.sources import Model
    from llmcalc.tokens.base import Tokenizer

DEFAULT = "gpt2"
LONG = 4_000_000
"""Bytes of the longest text whose ids are listed; a longer one is counted."""


@takes
def tokenize(
    options: TokenOptions,
    counting: CountOptions,
    output: OutputOptions,
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT|FILE]...", help="A text, files, a directory, or - for stdin."
        ),
    ] = None,
) -> None:
    """Text to token ids: pieces, counts and boundaries; gpt2 unless told otherwise.

    \b
    llmcalc tokenize "The weather is"
    llmcalc tokenize --tokenizer cl100k_base --count notes.md
    llmcalc tokenize --model ./SmolLM2 --chat messages.json
    llmcalc tokenize --compare gpt2,cl100k_base,o200k_base "Hello, world"
    git diff | llmcalc tokenize - --max-tokens 4000
    """
    from llmcalc.cli.tokenize import table as shown

    mode = options.mode()
    if options.ids is not None:
        write(shown.decoded(_tokenizer(options), options.ids), output)
        return
    if options.compare is not None:
        write(shown.compared(options.compare, _one_text(texts, options, mode), mode), output)
        return
    tokenizer = _tokenizer(options)
    if options.cluster is not None or any("://" in word for word in texts or ()):
        _only_counts(counting)
        if options.add_special:
            raise InputError("--add-special does not go with files at addresses")
        view, n = shown.counted_far(tokenizer, texts or (), options, mode)
        _answer(view, n, counting, output)
        return
    files = [] if options.chat is not None else _files(texts, options)
    if len(files) > 1 or (files and _must_count(files[0])):
        _only_counts(counting)
        view, n = shown.counted(tokenizer, files, options, mode, not counting.count)
        _answer(view, n, counting, output)
        return
    if options.chat is not None and (named := _openai(options)) is not None:
        view, n = shown.by_rule(tokenizer, options.chat, named)
        _answer(view, n, counting, output)
        return
    text, mode, notes = _text(texts, options, mode, tokenizer)
    if counting.truncate is not None:
        _truncated(tokenizer, text, counting, mode)
        return
    context, embedding = _sizes(options)
    subject = shown.Subject(
        tokenizer=tokenizer,
        text=text,
        special=mode,
        add=options.bos_eos,
        context=context,
        embedding=embedding,
        notes=[*notes, *(spelled(text, tokenizer) if mode == "allow" else [])],
    )
    view = shown.of_text(subject, counting)
    facts = {fact.key: fact.value for fact in view.facts}
    _answer(view, int(facts["n_tokens"]), counting, output)
    if counting.live and not facts["live_same"]:
        raise typer.Exit(1)


def _only_counts(counting: CountOptions) -> None:
    """Many files and long ones are counted; what needs the ids of one text is an InputError."""
    if counting.truncate is not None or counting.top is not None or counting.live:
        raise InputError("--truncate, --top and --live are for one text that is not too long")


def _answer(view: View, n: int, counting: CountOptions, output: OutputOptions) -> None:
    """The number alone or the whole view; exit 1 where ``--max-tokens`` is exceeded."""
    from llmcalc.cli.tokenize.table import priced

    if counting.count:
        print(n)
    else:
        write(priced(view, n, counting), output)
    if counting.max_tokens is None:
        return
    most = count_in("--max-tokens", counting.max_tokens)
    if n > most:
        typer.echo(
            f"{exact(n)} tokens, {exact(n - most)} more than --max-tokens {exact(most)}", err=True
        )
        raise typer.Exit(1)


def _model(options: TokenOptions) -> Model | None:
    """The model that was named, if that is what the name is."""
    from llmcalc.sources import resolve

    if options.model is None or _is_openai(options.model):
        return None
    return resolve(options.model)


def _tokenizer(options: TokenOptions) -> Tokenizer:
    """The tokenizer that was named, or that of the model that was, with what is added to it."""
    found = _plain_tokenizer(options)
    if not options.add_special:
        return found
    from llmcalc.tokens import added

    return added.Extended(found, added.parse(options.add_special))


def _plain_tokenizer(options: TokenOptions) -> Tokenizer:
    from llmcalc.tokens.find import named, of_model, openai

    if options.model is None or options.tokenizer is not None:
        return named(options.tokenizer or DEFAULT)
    if openai(options.model) is not None:
        return named(options.model)
    try:
        found = _model(options)
    except InputError:
        named(options.model)  # says what is close, among encodings and models
        raise
    assert found is not None
    return of_model(found)


def _openai(options: TokenOptions) -> str | None:
    """The OpenAI model that was named, None where something else was."""
    name = options.model or options.tokenizer
    return name if name is not None and _is_openai(name) else None


def _is_openai(name: str) -> bool:
    """Whether it names one of OpenAI's models whose weights are not published."""
    from llmcalc.sources import presets
    from llmcalc.tokens.find import openai

    return openai(name) is not None and presets.find(name) is None


def _sizes(options: TokenOptions) -> tuple[int | None, int | None]:
    """The context of the model that was named, and the rows of its embedding."""
    try:
        found = _model(options)
        if found is None:
            return None, None
        tables = (w for w in found.anatomy.weights if w.role == "embed.token")
        rows = next((int(table.shape[0]) for table in tables), None)
    except InputError:
        return None, None
    return found.longest_context, rows


def _is_file(word: str) -> bool:
    try:
        return Path(word).exists()
    except (OSError, ValueError):
        return False


def _files(texts: Sequence[str] | None, options: TokenOptions) -> list[Path]:
    """The files that the arguments name.

    A directory is everything in it, a pattern what it matches.
    """
    if options.as_text or not texts or texts == ["-"]:
        return []
    found: list[Path] = []
    for word in texts:
        if word and _is_file(word):
            found += _inside(Path(word))
            continue
        matches = _matches(word) if any(c in word for c in "*?[") else []
        if matches:
            found += matches
        elif len(texts) > 1:
            raise InputError(
                f"no file is called {shorten(word)}",
                hint="several arguments are files; quote a text",
            )
        elif _LIKE_A_FILE.fullmatch(word):
            raise InputError(f"no file is called {shorten(word)}", hint="--text reads it as a text")
    return found


def _inside(path: Path) -> list[Path]:
    """Every file of a directory; a file is itself."""
    return sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]


_ENDINGS = "txt|md|rst|json|jsonl|csv|tsv|py|html?|xml|ya?ml|toml|parquet|log|tex|gz"
_LIKE_A_FILE = re.compile(rf"(?:[\w.~-]+/)*[\w.~-]+\.(?:{_ENDINGS})")
"""What nobody writes as a text: a misspelt file must not pass for a short text."""


def _matches(pattern: str) -> list[Path]:
    """Files that a pattern matches, for shells that leave patterns to the program."""
    path = Path(pattern)
    base, rest = Path(), pattern
    if path.is_absolute():
        base = Path(path.anchor)
        rest = str(path.relative_to(base))
    try:
        return sorted(p for p in base.glob(rest) if p.is_file())
    except (OSError, ValueError, NotImplementedError):
        return []


def _must_count(path: Path) -> bool:
    from llmcalc.tokens.corpus import is_corpus

    return is_corpus(path) or path.stat().st_size > LONG


def _text(
    texts: Sequence[str] | None, options: TokenOptions, mode: str, tokenizer: Tokenizer
) -> tuple[str, str, list[str]]:
    """The one text there is, how its special tokens are read, and what to say about it."""
    if options.chat is None:
        if options.template_set:
            raise InputError("--template-set goes with --chat")
        text = _one_text(texts, options, mode)
        return text, mode, marked(text)
    if texts:
        raise InputError("--chat has the text: it takes no other")
    from llmcalc.sources import resolve
    from llmcalc.tokens import chat

    if options.model is None and options.tokenizer is None:
        raise InputError("--chat needs the model whose template to use", hint="--model ./SmolLM2")
    where = options.model or str(options.tokenizer)
    path = Path(where)
    is_model = options.model or path.is_dir() or path.suffix == ".gguf"
    model = resolve(where if is_model else str(path.parent))
    template, names = chat.template_of(model)
    talk = chat.conversation(Path(options.chat), options.template_set or ())
    whole, unread = chat.render(template, talk, names)
    contents = [str(message.get("content") or "") for message in talk.messages]
    alone = sum(len(tokenizer.encode(content, "text")) for content in contents)
    added = len(tokenizer.encode(whole, "allow")) - alone
    said = [
        f"{len(talk.messages)} messages: {exact(alone)} tokens of content, {exact(added)} that"
        " the template adds"
    ]
    if unread:
        said.append(f"the template never reads {', '.join(map(shorten, unread))}")
    return whole, "allow", said


def _one_text(texts: Sequence[str] | None, options: TokenOptions, mode: str) -> str:
    """A text as an argument, in a file, or from standard input."""
    from llmcalc.tokens.count import decode

    if sys.stdin is None and (not texts or "-" in texts):
        raise UnavailableError("standard input is closed")
    if not texts and sys.stdin.isatty():
        raise InputError(
            "there is no text",
            hint='llmcalc tokenize "The weather is", a file, or - for standard input',
        )
    if not texts or texts == ["-"]:
        return decode(_standard_input().read(), options.errors, "standard input")
    if len(texts) > 1:
        raise InputError("one text at a time", hint="quote it")
    if not options.as_text and _is_file(texts[0]) and Path(texts[0]).is_file():
        return decode(Path(texts[0]).read_bytes(), options.errors, shorten(texts[0]))
    # what is no UTF-8 comes in as lone surrogates
    return decode(os.fsencode(texts[0]), options.errors, "the text")


def marked(text: str) -> list[str]:
    """A word about a byte-order mark, which nobody sees and a tokenizer reads."""
    if not text.startswith("\ufeff"):
        return []
    return ["the text begins with a byte-order mark (U+FEFF), which is counted with it"]


def spelled(text: str, tokenizer: Tokenizer) -> list[str]:
    """A word about what looks like a special token and is none of this tokenizer's."""
    looks = dict.fromkeys(re.findall(r"<\|\w{1,40}\|>", text[:LONG]))
    odd = [one for one in looks if one not in tokenizer.special]
    if not odd:
        return []
    names, verb = ", ".join(odd[:5]), "is no special token" if len(odd) == 1 else "are none"
    how = f"--add-special '{odd[0]}=ID' makes it one"
    return [f"{names} {verb} of {tokenizer.name}: read as text; {how}"]


def _standard_input() -> BinaryIO:
    return sys.stdin.buffer


def _truncated(tokenizer: Tokenizer, text: str, counting: CountOptions, mode: str) -> None:
    """The beginning of a text, to standard output, byte for byte."""
    from llmcalc.tokens.count import truncate

    n = count_in("--truncate", str(counting.truncate))
    if n < 1:
        raise InputError(f"--truncate is {counting.truncate}; it must be at least 1")
    whole, kept = truncate(tokenizer, text, n, mode)
    sys.stdout.write(whole)
    sys.stdout.flush()
    left = len(text) - len(whole)
    typer.echo(f"note: {exact(kept)} tokens; {exact(left)} characters left out", err=True)
