"""Whole networks at full size: what compiling them takes, what comes of it, and how fast and how exact it runs.

Every step is a process of its own (full_network_steps.py), so that one's memory is not counted as another's; all are
kept to THREADS processors and as many threads.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "build" / "networks"  # exported once; `make clean` removes it
STEPS = Path(__file__).parent / "full_network_steps.py"
THREADS = 2
NEEDED = ("torch", "onnx", "onnxruntime")


@dataclass(frozen=True)
class Full:
    """A network: `builder` is "family.function" of tests/networks, called with `options`."""

    name: str
    builder: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """The ONNX file; its example inputs lie beside it."""
        return FOLDER / f"{self.name.replace(' ', '_').replace('/', '_')}.onnx"


NETWORKS = (
    Full("ResNet-50", "resnet.full"),
    Full("MobileNetV2", "mobilenet.full"),
    Full("DenseNet-121", "densenet.full"),
    Full("SqueezeNet 1.1", "squeezenet.full"),
    Full("ShuffleNetV2", "shufflenet.full"),
    Full("ViT-B/16", "vit.full"),
    Full("BERT-base", "bert.full"),
    Full("MiniLM-L6", "bert.full_minilm"),
    Full("GPT-2", "gpt2.full"),
    Full("GPT-2 with cache", "gpt2.full_cache"),
    Full("Llama-shaped 2 layers", "llama.full", {"layers": 2}),
    Full("Llama-shaped with cache 2 layers", "llama.full_cache", {"layers": 2}),
)


def missing() -> str | None:
    """What full networks need and this environment lacks, as a person would say it; None if nothing."""
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if not absent:
        return None
    return f"full networks need {', '.join(absent)}, which is not installed: pip install -e '.[dev]'"


def measurements(names: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Facts of each network, or of those named: see `step` of full_network_steps.py for what they are."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for network in NETWORKS:
        if names and network.name not in names:
            continue
        if not network.path.with_suffix(".npz").exists():  # written as the last
            run("export", network.path, network.builder, json.dumps(network.options))
        first, second = (run("compile", network.path) for _ in range(2))
        identical = first.pop("sha256") == second.pop("sha256")
        # Of the two, the one that other programs on this computer slowed down less.
        best = min(first, second, key=lambda facts: float(facts["compile_seconds"]))
        facts = {"network": network.name, "threads": THREADS, **best, "identical": identical}
        yield facts | run("execute", network.path)


def run(step: str, *arguments: Any) -> dict[str, Any]:
    """The facts that a step finds, in a process of its own."""
    threads = str(THREADS)
    environment = os.environ | {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads}
    command = [sys.executable, str(STEPS), step, threads, *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    facts: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return facts
