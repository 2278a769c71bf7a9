"""What every family builds: a torch module in evaluation mode, with example inputs and names for its ends."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Network:
    """A module and how to call it.

    `inputs` are the positional arguments: tensors, or nested tuples of them (a KV cache). `input_names` name their
    leaves in order. `dynamic` maps a name (of an input) to its axes of symbolic length: `{"x": {0: "batch"}}`.
    """

    model: nn.Module
    inputs: tuple[Any, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    dynamic: dict[str, dict[int, str]]


def leaves(tree: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, in order."""
    if isinstance(tree, Tensor):
        yield tree
    else:
        for branch in tree:
            yield from leaves(branch)


def resized(network: Network, sizes: dict[str, int]) -> tuple[Any, ...]:
    """The example inputs with axes of symbolic length cut, or repeated, to `sizes` ({"batch": 3, ...})."""
    names = iter(network.input_names)

    def resize(tree: Any) -> Any:
        if not isinstance(tree, Tensor):
            return tuple(resize(branch) for branch in tree)
        for axis, dim in network.dynamic.get(next(names), {}).items():
            tree = tree.index_select(axis, torch.arange(sizes[dim]) % tree.shape[axis])
        return tree

    return resize(network.inputs)


def randomise(model: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter a random value that keeps activations near unit variance; evaluation mode.

    Scales and biases are random too: with ones and zeros, a compiler that drops or misplaces them would pass.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(shape: torch.Size, deviation: float) -> Tensor:
        return torch.randn(shape, generator=generator) * deviation

    with torch.no_grad():
        for module in model.modules():
            gain = math.sqrt(2) if isinstance(module, nn.Conv2d) else 1.0  # a ReLU halves the variance
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim > 1:
                    fan_in = parameter[0].numel() if isinstance(module, nn.Conv2d) else parameter.shape[-1]
                    parameter.copy_(normal(parameter.shape, gain / math.sqrt(fan_in)))
                elif "bias" in name:
                    parameter.copy_(normal(parameter.shape, 0.1))
                else:
                    parameter.copy_(torch.rand(parameter.shape, generator=generator) + 0.5)
    return model.eval()


def calibrate(model: nn.Module, *inputs: Tensor) -> nn.Module:
    """Set batch-norm statistics to those of `inputs`, as training would, and then shake them; evaluation mode.

    Made-up statistics would let activations grow or vanish from layer to layer; exact ones would hide an epsilon.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    generator = torch.Generator().manual_seed(1)
    for norm in norms:
        norm.momentum = 1.0  # the last batch's statistics, not a running average with the initial ones
    with torch.no_grad():
        model.train()(*inputs)
        for norm in norms:
            shape = norm.running_var.shape
            shift = 0.1 * torch.randn(shape, generator=generator)
            norm.running_mean.add_(shift * norm.running_var.sqrt())
            # The mean of the factors on the activations is 1, so that deep networks do not add up the shaking.
            norm.running_var.div_(torch.rand(shape, generator=generator) / 2 + 0.75).add_(1e-3)
            norm.momentum = 0.1
    return model.eval()


def image_network(model: nn.Module, size: int, batch: int = 2) -> Network:
    """A classifier of `size` x `size` RGB images: `pixels` f32 [batch, 3, size, size] -> `logits` [batch, classes]."""
    generator = torch.Generator().manual_seed(2)
    randomise(model)
    # Enough images for a variance even where the last layers see one pixel each.
    calibrate(model, torch.randn(8, 3, size, size, generator=generator))
    pixels = torch.randn(batch, 3, size, size, generator=generator)
    return Network(model, (pixels,), ("pixels",), ("logits",), {"pixels": {0: "batch"}})


def token_ids(batch: int, length: int, vocabulary: int) -> Tensor:
    """Random token ids, i64 [batch, length]."""
    return torch.randint(0, vocabulary, (batch, length), generator=torch.Generator().manual_seed(3))


def padding_mask(batch: int, length: int) -> Tensor:
    """An attention mask, i64 [batch, length]: 1 for a token; every second sequence ends in padding (0)."""
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[1::2, -max(1, length // 4) :] = 0
    return mask
