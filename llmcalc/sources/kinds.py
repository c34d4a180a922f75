"""Files that people name and that are no checkpoint that can be read: each with its own word."""

from __future__ import annotations

from pathlib import Path

from llmcalc.errors import InputError
from llmcalc.text import shorten

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_CONVERT = "convert it to safetensors where it comes from; llmcalc never unpickles"
_OTHERS = {
    ".onnx": ("an ONNX graph", "name the directory it was exported from, with its config.json"),
    ".npz": ("an archive of numpy arrays", "save the arrays as safetensors: mlx and numpy can"),
    ".nemo": (
        "a NeMo archive",
        "unpack it: it is a tar file with weights and model_config.yaml; export it to the hub's"
        " format and name that directory",
    ),
    ".mlpackage": ("a Core ML package", "name the model it was converted from"),
    ".mlmodel": ("a Core ML model", "name the model it was converted from"),
    ".h5": ("a Keras file", "name the directory's config.json, which has the sizes"),
    ".msgpack": ("a Flax checkpoint", "name the directory's config.json, which has the sizes"),
    ".tflite": ("a TensorFlow Lite model", "name the model it was converted from"),
    ".engine": ("a TensorRT engine", "name the checkpoint it was built from"),
    ".zip": ("a zip archive", "unpack it and name the directory"),
    ".tar": ("a tar archive", "unpack it and name the directory"),
    ".gz": ("a compressed archive", "unpack it and name what is in it"),
}


def refuse(path: Path, name: str) -> None:
    """A file or package of a kind that is not read is an InputError that says what to do."""
    if path.suffix in PICKLES:
        raise InputError(
            f"{shorten(name)} is a pickle, which can run code when it is read", hint=_CONVERT
        )
    if path.suffix in _OTHERS:
        what, hint = _OTHERS[path.suffix]
        raise InputError(f"{shorten(name)} is {what}, which is not read", hint=hint)


def pickles_in(folder: Path) -> list[str]:
    """Names of the pickles in a directory that look like weights."""
    found = (p for p in folder.iterdir() if p.suffix in PICKLES)
    return sorted(p.name for p in found if p.name not in ("training_args.bin", "optimizer.pt"))


def nothing_in(folder: Path, name: str) -> InputError:
    """The error of a directory in which there is no model, with what there is instead."""
    pickles = pickles_in(folder)
    if pickles:
        return InputError(
            f"the directory {shorten(name)} holds only pickles ({shorten(pickles[0])}), which are"
            " not opened, and no config.json",
            hint=_CONVERT,
        )
    others = sorted(p.name for p in folder.iterdir() if p.suffix in _OTHERS)
    if others:
        what, hint = _OTHERS[Path(others[0]).suffix]
        return InputError(
            f"the directory {shorten(name)} holds {what} ({shorten(others[0])}), which is not read,"
            " and no config.json",
            hint=hint,
        )
    inside = sorted(p.name for p in folder.iterdir() if (p / "config.json").is_file())
    if inside:
        return InputError(
            f"the directory {shorten(name)} holds no model itself, but directories with one",
            hint=f"name one: {', '.join(shorten(n) for n in inside[:4])}",
        )
    return InputError(
        f"the directory {shorten(name)} holds no config.json and no checkpoint",
        hint="name a directory with a config.json, a .safetensors or a .gguf file",
    )
