"""Weights of PyTorch modules under the names of the layer library; a small decoder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dla.compiler.models.decoder import DecoderConfig
from dla.compiler.models.weights import Weights

LLAMA = {r"^(?!lm_head)": "model.", r"(gate|up|down)_proj": r"mlp.\1_proj"}
"""What to call the weights of `networks.llama`."""
TINY = DecoderConfig(50, 32, layers=2, heads=4, kv_heads=2, hidden=48, context=32, chunk=8)


def renamed(module: Any, names: Mapping[str, str]) -> Weights:
    """The weights of a PyTorch module; `names` are patterns with what to write for them."""
    found = {}
    for name, tensor in module.state_dict().items():
        for pattern, text in names.items():
            name = re.sub(pattern, text, name)
        if tensor.is_floating_point():
            found[name] = tensor.numpy()
    return Weights.of_arrays(found)
