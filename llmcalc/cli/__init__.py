"""The Typer app, and the border where every error becomes one line."""

from __future__ import annotations

import io
import os
import sys
from importlib import import_module

import typer

from llmcalc.cli.options.spellings import in_our_words
from llmcalc.cli.output.write import OutputClosed
from llmcalc.cli.said import said
from llmcalc.errors import LlmcalcError
from llmcalc.text import safe


def _version(asked: bool) -> None:
    if asked:
        from llmcalc import __version__

        print(f"llmcalc {__version__}")
        raise typer.Exit


def _before(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options before the command."""


COMMANDS = {
    "params": "params.command:params",
    "kvcache": "kvcache.command:kvcache",
    "fit": "fit.command:fit",
    "dtype": "dtype.command:show",
    "train": "train.command:train_command",
    "speed": "speed.command:speed",
    "trace": "trace.command:trace",
    "tokenize": "tokenize.command:tokenize",
    "sample": "sample.command:sample",
    "check": "check:check",
    "list": "list:list_known",
    "cache": "cache:cache",
}
"""Command to the module and the function that answer it."""


def _application(argv: list[str]) -> typer.Typer:
    """The command that is asked for, or all of them where none is: an import that is not needed
    costs time.
    """
    app = typer.Typer(
        name="llmcalc",
        help=(
            "Model anatomy and memory arithmetic: what a language model is made of, and what it"
            " takes in memory."
        ),
        no_args_is_help=True,
        add_completion=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_before)
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name in [asked] if asked in COMMANDS else COMMANDS:
        module, _, attribute = COMMANDS[str(name)].partition(":")
        function = getattr(import_module(f"llmcalc.cli.{module}"), attribute)
        first = (function.__doc__ or "").partition("\n\n")[0]
        app.command(name, short_help=" ".join(first.split()))(function)
    return app


def main(argv: list[str] | None = None) -> int:
    """Runs one command.

    The exit code is 0 done, 1 a difference found, 2 wrong input, 3 not available, 70 a bug.
    """
    if sys.stderr is None:
        # whoever closed it does not want to read it
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115
    if sys.stdout is None:
        return _say("the output is closed", None, 3)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # an old terminal's encoding must not end a command
            stream.reconfigure(errors="backslashreplace")
    try:
        said()  # of another command in the same process
        words = in_our_words(sys.argv[1:] if argv is None else argv)
        code = _application(words)(args=words, standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # Ctrl-C, as Typer reports it
            return _say("interrupted", None, 130)
        return code if isinstance(code, int) else 0
    except LlmcalcError as error:
        return _say(str(error), error.hint, error.exit_code)
    except OutputClosed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _say(f"the output cannot be written: {error.strerror or error}", None, 3)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", None, 130)
    except MemoryError:
        return _say("not enough memory", None, 3)
    except Exception as error:
        if hasattr(error, "format_message"):
            context = getattr(error, "ctx", None)
            if type(error).__name__ == "NoArgsIsHelpError":
                print(error.format_message())
                return 2
            path = context.command_path if context else "llmcalc"
            message = error.format_message()
            return _say(
                message[:1].lower() + message[1:],
                f"`{path} --help` shows the options",
                getattr(error, "exit_code", 2),
            )
        return _say(
            f"a bug in llmcalc: {type(error).__name__}: {error}",
            "LLMCALC_DEBUG=1 shows where; please report it",
            70,
        )


def _say(message: str, hint: str | None, code: int) -> int:
    if os.environ.get("LLMCALC_DEBUG") and code != 130:
        import traceback

        traceback.print_exc()
    print(f"error: {safe(message)}", file=sys.stderr)
    if hint:
        print(f"\nhint: {safe(hint)}", file=sys.stderr)
    return code


def run() -> None:
    """The console script.

    An overflow is an infinity that the answer shows: numpy need not say so on its own.
    """
    import warnings

    warnings.simplefilter("ignore", RuntimeWarning)
    code = main()
    ranks = sys.modules.get("llmcalc.live.ranks")
    if ranks is not None:  # one of several processes on one model
        ranks.leave(code)
    sys.exit(code)
