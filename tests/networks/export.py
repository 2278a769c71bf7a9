"""Export of a torch module to an ONNX file by either of torch's exporters."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

EXPORTERS = ("torchscript", "dynamo")
LARGEST_IN_ONE_FILE = 1_500_000_000  # bytes of weights; protobuf ends at 2 GiB, and an exporter may copy some of them


def export(
    model: nn.Module,
    inputs: tuple[Any, ...],
    path: Path,
    *,
    exporter: str = "torchscript",
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    opset: int | None = None,
    optimize: bool = True,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
) -> None:
    """Write `model`, called with `inputs` (tensors, or nested tuples of them), to `path`.

    `dynamic` maps an input's name to its axes of symbolic length, `{"ids": {0: "batch", 1: "sequence"}}`; every
    other axis is fixed to the example's. `opset` is the exporter's own default where None. Without `optimize` the
    exporter leaves its own foldings out: batch norms stay beside convolutions, shape arithmetic stays. Weights of
    more than 1.5 GB go to files beside `path`. Raises ValueError for an unknown exporter, and what torch raises.
    """
    if exporter not in EXPORTERS:
        raise ValueError(f"unknown exporter {exporter!r}: one of {', '.join(EXPORTERS)}")
    options: dict[str, Any] = {"input_names": list(input_names), "output_names": list(output_names)}
    if exporter == "dynamo":
        size = sum(tensor.nbytes for tensor in model.state_dict().values())
        options |= {"dynamo": True, "verbose": False, "external_data": size > LARGEST_IN_ONE_FILE}
        options["optimize"] = optimize
        if dynamic:
            axes = iter([dict(dynamic.get(name, {})) for name in input_names])
            options["dynamic_shapes"] = _like(inputs, axes)
    else:
        options |= {"dynamo": False, "dynamic_axes": {name: dict(axes) for name, axes in (dynamic or {}).items()}}
        # A model "for evaluation" has its batch norms folded; one whose mode is preserved has not.
        training = torch.onnx.TrainingMode.EVAL if optimize else torch.onnx.TrainingMode.PRESERVE
        options |= {"do_constant_folding": optimize, "training": training}
    # Gradients stay on, as where people call the exporter: without them nn.MultiheadAttention takes a path that the
    # older exporter cannot export.
    with _quiet():
        torch.onnx.export(model, inputs, str(path), opset_version=opset, **options)


def _like(tree: Any, values: Iterator[Any]) -> Any:
    """The tuples of `tree` with its leaves replaced by `values`, in order."""
    return tuple(_like(branch, values) for branch in tree) if isinstance(tree, tuple) else next(values)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn about their own deprecations, tracing and progress; none of it concerns who tests a compiler."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
