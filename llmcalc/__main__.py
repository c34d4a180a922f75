"""``python -m llmcalc``."""

from llmcalc.cli import run

if __name__ == "__main__":
    run()
