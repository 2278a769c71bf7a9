"""A compiled network has about as many instructions as real layers: limits on all of them, and on those per layer.

The networks have the depth of the real ones. Widths, which no count depends on, are small; so are their exports.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from networks.catalogue import SPELLINGS, Case
from networks.test_compile import compiled

if TYPE_CHECKING:
    from networks.conftest import Exported

    Export = Callable[[Case], Exported]

ALL: list[tuple[str, int]] = [
    ("resnet", 57),  # 53 convolutions with what stands around them, two pools, one product
    ("mobilenet", 55),  # 52 convolutions
    ("densenet", 251),  # 120 convolutions; 62 norms and activations of what is concatenated
    ("squeezenet", 31),  # 26 convolutions, which write where they are concatenated
    ("shufflenet", 89),  # 56 convolutions; 29 copies shuffle channels
]
PER_LAYER: dict[str, int] = {
    "bert": 7,  # q, k and v as one, attention, projection, norm, feed-forward network of two, norm
    "minilm": 7,
    "gpt2": 7,
    "gpt2_cache": 11,  # the model's own results: keys and values so far are copied, then the new ones
    "llama": 8,  # one more turns queries and keys
    "llama_cache": 12,  # keys are turned where they belong in the cache: one instruction more, one copy fewer
    "vit": 7,
}
BOTH_EXPORTERS = ("bert_eager", "llama_triangle")  # one of each kind by the exporter that is slow


def family(name: str) -> str:
    """The entry of PER_LAYER for one of the catalogue's spellings."""
    return max((key for key in PER_LAYER if name.startswith(key)), key=len, default="")


LAYERED: list[tuple[str, str, str, dict[str, Any]]] = [
    (name, exporter, builder, options)
    for name, builder, options, _ in SPELLINGS
    if family(name)
    for exporter in (("torchscript", "dynamo") if name in BOTH_EXPORTERS else ("torchscript",))
]
PER_LAYER_IDS = [f"{name}-{exporter}" for name, exporter, _, _ in LAYERED]


@pytest.mark.parametrize(("name", "limit"), ALL, ids=[name for name, _ in ALL])
def test_a_convolutional_network_is_its_convolutions(exported: Export, name: str, limit: int) -> None:
    """At the real depth; ResNet-50 may have 60."""
    assert instructions(exported(Case(f"{name}_narrow", "torchscript", f"{name}.narrow"))) <= limit


def test_resnet_50_by_the_newer_exporter(exported: Export) -> None:
    """As by the older one."""
    assert instructions(exported(Case("resnet_narrow", "dynamo", "resnet.narrow"))) <= 57


@pytest.mark.parametrize(("name", "exporter", "builder", "options"), LAYERED, ids=PER_LAYER_IDS)
def test_one_layer_more_is_few_instructions_more(
    exported: Export, name: str, exporter: str, builder: str, options: dict[str, Any]
) -> None:
    """The difference between two layers and one."""
    one = instructions(exported(Case(f"{name}_1_layer", exporter, builder, {**options, "layers": 1})))
    two = instructions(exported(Case(name, exporter, builder, options)))
    assert two - one <= PER_LAYER[family(name)]


@pytest.mark.parametrize(
    ("name", "builder", "layers", "around"),
    [
        ("bert_eager", "bert.small", 12, 15),
        ("llama_triangle", "llama.small", 22, 23),
        ("gpt2_buffer", "gpt2.small", 12, 7),
    ],
)
def test_all_layers_and_what_is_around_them(
    exported: Export, name: str, builder: str, layers: int, around: int
) -> None:
    """Nothing adds up over the real number of layers; embeddings, mask and head are `around`."""
    network = exported(Case(f"{name}_{layers}_layers", "torchscript", builder, {"layers": layers}))
    assert instructions(network) <= layers * PER_LAYER[family(name)] + around


def instructions(network: Exported) -> int:
    """How many instructions the network has at any size, HALT and what computes sizes among them."""
    return len(compiled(network).program.instructions)
