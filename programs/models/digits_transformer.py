"""The transformer of `programs/digits_transformer.dla`, built in Python from the same weights.

python programs/models/digits_transformer.py digits_transformer.dlab
dla run digits_transformer.dlab --input images=programs/data/digits.safetensors#test_images --output out.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import dla
from dla.compiler.graph import Graph, Value
from dla.compiler.models.attention import merge_heads, split_heads
from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Spelling, Weights
from dla.isa.dtypes import DType

HERE = Path(__file__).parent
SPELLING = Spelling(
    "_", {"weight": "{}_w", "bias": "{}_b", "shift": "{}_bias", "positions": "{}"}, out_first=False
)  # fmt: skip
HEADS, DEPTH = 4, 16
WIDTH = HEADS * DEPTH


def attention(m: Layers, x: Value) -> Value:
    """[batch, 16, 64] -> the same; queries, keys and values are the three thirds of one product's columns."""
    qkv = m.linear(x, 3 * WIDTH, "qkv")
    q, k, v = (split_heads(m, m.part(qkv, 2, third * WIDTH, WIDTH), HEADS, DEPTH) for third in range(3))
    return m.linear(merge_heads(m, m.attention(q, k, v)), WIDTH, "proj")


def build() -> Graph:
    """Images u8 [batch, 8, 8] -> p f32 [batch, 10] and digit i32 [batch]."""
    m = Layers("digits_transformer", Weights.of_file(HERE.parent / "digits_transformer.safetensors", spelling=SPELLING))
    batch = m.symbol("batch", 1797)
    images = m.input("images", DType.U8, (batch, 8, 8))
    # Rows of patches, rows of pixels, columns of patches, columns of pixels; the cast then cuts the image up.
    cut = m.transpose(m.reshape(images, (batch, 4, 2, 4, 2)), (0, 1, 3, 2, 4))
    patches = m.reshape(m.cast(cut, DType.F32), (batch, 16, 4))
    x = m.linear(patches, WIDTH, "embed", scale=1 / 16)  # pixels are 0 to 16
    x = m.add(x, m.part_of("pos", "positions", (16, WIDTH)))
    for layer in range(2):
        with m.scope(f"l{layer}"):
            x = m.add(x, attention(m, m.layer_norm(x, "ln1")))
            x = m.add(x, m.mlp(m.layer_norm(x, "ln2"), 128))
    p = m.softmax(m.linear(m.reduce("mean", m.layer_norm(x, "ln"), (1,)), 10, "head"))
    m.output("p", p)
    m.output("digit", m.reduce("argmax", p, (1,), dtype=DType.I32))
    return m.finish()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".dlab"):
        sys.exit(__doc__)
    compiled = dla.compile_model(build())
    dla.save(compiled.program, sys.argv[1])
    print(compiled)
