"""The networks of the tests: which one, in which spelling, by which exporter. Needs no torch until one is built."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from networks.network import Network

OTHER_SIZES = {"batch": 3, "sequence": 6, "past_sequence": 4, "total_sequence": 10}  # of no example; a cache's add up


@dataclass(frozen=True)
class Case:
    """One network in its small configuration and one way to export it; `str` is its name in a test's id.

    `builder` is "family.function" of this package, called with `options`. `opset` is the exporter's default where
    None. Without `dynamic` every axis has the example's size. Without `optimize` batch norms stay where they are.
    """

    name: str
    exporter: str
    builder: str
    options: dict[str, Any] = field(default_factory=dict, hash=False)
    opset: int | None = None
    dynamic: bool = True
    optimize: bool = True

    def __str__(self) -> str:
        parts = [self.name, self.exporter]
        parts += [f"opset{self.opset}"] if self.opset else []
        parts += [] if self.dynamic else ["static"]
        parts += [] if self.optimize else ["raw"]
        return "-".join(parts)

    def build(self) -> Network:
        """The module with its example inputs; needs torch."""
        family, function = self.builder.split(".")
        network: Network = getattr(importlib.import_module(f"networks.{family}"), function)(**self.options)
        return network


# Every network and spelling by the exporter that is quick; every network by the one that takes seconds for each.
SPELLINGS: list[tuple[str, str, dict[str, Any], bool]] = [
    ("resnet", "resnet.small", {}, True),
    ("resnet_basic", "resnet.small_basic", {}, False),
    ("mobilenet", "mobilenet.small", {}, True),
    ("densenet", "densenet.small", {}, True),
    ("squeezenet", "squeezenet.small", {}, True),
    ("shufflenet", "shufflenet.small", {}, True),
    ("bert_eager", "bert.small", {"attention": "eager"}, True),
    ("bert_sdpa", "bert.small", {"attention": "sdpa"}, False),
    ("bert_sdpa_bool", "bert.small", {"attention": "sdpa_bool"}, False),
    ("minilm", "bert.small_minilm", {}, True),
    ("gpt2_buffer", "gpt2.small", {"attention": "buffer"}, False),
    ("gpt2_is_causal", "gpt2.small", {"attention": "is_causal"}, True),
    ("gpt2_cache_buffer", "gpt2.small_cache", {"attention": "buffer"}, True),
    ("gpt2_cache_compared", "gpt2.small_cache", {"attention": "compared"}, False),
    ("llama_triangle", "llama.small", {"attention": "triangle"}, True),
    ("llama_is_causal", "llama.small", {"attention": "is_causal"}, False),
    ("llama_cache_compared", "llama.small_cache", {"attention": "compared"}, False),
    ("vit_multihead", "vit.small", {"attention": "multihead"}, True),
    ("vit_sdpa", "vit.small", {"attention": "sdpa"}, False),
    ("vit_eager", "vit.small", {"attention": "eager"}, False),
    ("lstm", "recurrent.small", {}, True),
    ("gru", "recurrent.small_gru", {}, True),
    # The networks of programs/, trained.
    *((f"digits_{name}", "digits.trained", {"name": name}, True) for name in ("mlp", "cnn", "transformer", "lstm")),
]

NETWORKS: list[Case] = [
    *(Case(name, "torchscript", builder, options) for name, builder, options, _ in SPELLINGS),
    *(Case(name, "dynamo", builder, options) for name, builder, options, both in SPELLINGS if both),
    # Batch norms beside their convolutions, and the oldest spellings of layer norm, GELU and axes.
    Case("resnet", "torchscript", "resnet.small", optimize=False),
    Case("mobilenet", "torchscript", "mobilenet.small", opset=12),
    Case("bert_eager", "torchscript", "bert.small", {"attention": "eager"}, opset=12),
    Case("gpt2_cache_buffer", "torchscript", "gpt2.small_cache", {"attention": "buffer"}, opset=14),
    # GELU before it was an operator; attention, RMS norm and rotary embedding since they are operators.
    Case("bert_sdpa", "dynamo", "bert.small", {"attention": "sdpa"}, opset=18),
    Case("gpt2_is_causal", "dynamo", "gpt2.small", {"attention": "is_causal"}, opset=23),
    Case("llama_cache_compared", "dynamo", "llama.small_cache", {"attention": "compared"}, opset=23),
    # Queries in groups by the operator itself; RMS norm and rotary embedding are written out again at this opset.
    Case("llama_gqa", "dynamo", "llama.small", {"attention": "gqa"}, opset=24),
    # Sizes that are all known.
    Case("shufflenet", "torchscript", "shufflenet.small", dynamic=False),
    Case("bert_sdpa", "torchscript", "bert.small", {"attention": "sdpa"}, dynamic=False),
    Case("llama_triangle", "torchscript", "llama.small", {"attention": "triangle"}, dynamic=False),
    Case("lstm", "dynamo", "recurrent.small", dynamic=False),
]
