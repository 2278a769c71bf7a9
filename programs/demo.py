"""Three networks, written as assembly, read 450 handwritten digits that they have never seen; then a model writes.

Run by `make demo`. Everything happens in three calls: assemble a text, load it on a machine, run it.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from safetensors.numpy import load_file

import dla

HERE = Path(__file__).parent
NETWORKS = ("digits_mlp", "digits_cnn", "digits_transformer")
SHADES = " ░▒▓█"  # paper to ink
INK = 16  # value of a black pixel
SHOWN = 8  # images
PATTERN = [3, 1, 4, 1, 5, 9, 2, 6, 3, 1, 4, 1]  # what the writing model is shown

console = Console(highlight=False)


def picture(image: np.ndarray) -> list[str]:
    """Eight lines of text, two characters per pixel, for an 8x8 image."""
    levels = image.astype(int) * (len(SHADES) - 1) // INK
    return ["".join(SHADES[level] * 2 for level in row) for row in levels]


def show_images(images: np.ndarray, labels: np.ndarray, answers: dict[str, np.ndarray]) -> None:
    """Some images in a row, with what each network read in them: green if right, red if wrong."""
    # Mistakes are the interesting images: show two of them among the first few.
    wrong = [i for i in range(len(labels)) if any(digits[i] != labels[i] for digits in answers.values())]
    chosen = [*range(SHOWN - 2), *[i for i in wrong if i >= SHOWN - 2][:2]]
    columns = max(1, min(len(chosen), console.width // 18))
    for start in range(0, len(chosen), columns):
        group = chosen[start : start + columns]
        for lines in zip(*(picture(images[i]) for i in group), strict=True):
            console.print("  ".join(lines))
        for name, digits in answers.items():
            line = Text()
            for i in group:
                style = "green" if digits[i] == labels[i] else "bold red"
                line.append(f"{name.removeprefix('digits_')}: {digits[i]}".ljust(18), style)
            console.print(line)
        console.print()


def classify(machine: dla.Machine) -> None:
    """Run the three networks on the held-out images; print accuracy, time and some images."""
    data = load_file(HERE / "data" / "digits.safetensors")
    images, labels = data["test_images"], data["test_labels"]
    table = Table("program", "instructions", "accuracy", "images", "time", "ran on")
    answers = {}
    for name in NETWORKS:
        program = dla.load(HERE / f"{name}.dla")
        session = machine.load(program)
        session.run({"images": images})  # the first run on a GPU compiles the machine; any program runs on it then
        began = time.perf_counter()
        result = session.run({"images": images})
        elapsed = time.perf_counter() - began
        answers[name] = result["digit"]
        accuracy = float(np.mean(result["digit"] == labels))
        table.add_row(
            name, str(len(program.instructions)), f"{accuracy:.2%}", str(len(labels)), f"{elapsed * 1e3:.1f} ms",
            result.backend,
        )  # fmt: skip
    show_images(images, labels, answers)
    console.print(table)


def write(machine: dla.Machine) -> None:
    """A model with a key-value cache continues a pattern, in a loop on the machine."""
    session = machine.load(dla.load(HERE / "attention_decode.dla"))
    result = session.run({"prompt": np.array(PATTERN, dtype=np.int32)})
    console.print(
        f"attention_decode, shown {PATTERN},\n  writes {result['tokens'].tolist()} (on {result.backend})",
        soft_wrap=True,
    )


def main() -> None:
    """Everything, on a GPU where there is one and on NumPy."""
    machine = dla.Machine(backend="auto")
    classify(machine)
    if machine.name != "golden":
        classify(dla.Machine(backend="golden"))
    write(machine)
    console.print("\nNext: `.venv/bin/dla --help`, and the lessons in programs/README.md.")


if __name__ == "__main__":
    main()
