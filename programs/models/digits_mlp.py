"""The perceptron of `programs/digits_mlp.dla`, built in Python from the same weights.

python programs/models/digits_mlp.py digits_mlp.dlab
dla run digits_mlp.dlab --input images=programs/data/digits.safetensors#test_images --output out.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import dla
from dla.compiler.graph import Graph
from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Spelling, Weights
from dla.isa.dtypes import DType

HERE = Path(__file__).parent
SPELLING = Spelling(parts={"weight": "w{}", "bias": "b{}"}, out_first=False)  # w1 is [in, out], as GEMM reads it


def build() -> Graph:
    """Images u8 [batch, 8, 8] -> p f32 [batch, 10] and digit i32 [batch]."""
    m = Layers("digits_mlp", Weights.of_file(HERE.parent / "digits_mlp.safetensors", spelling=SPELLING))
    batch = m.symbol("batch", 1797)
    images = m.input("images", DType.U8, (batch, 8, 8))
    x = m.reshape(m.cast(images, DType.F32), (batch, 64))
    x = m.act("relu", m.linear(x, 128, "1", scale=1 / 16))  # pixels are 0 to 16
    x = m.act("relu", m.linear(x, 64, "2"))
    p = m.softmax(m.linear(x, 10, "3"))
    m.output("p", p)
    m.output("digit", m.reduce("argmax", p, (1,), dtype=DType.I32))
    return m.finish()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".dlab"):
        sys.exit(__doc__)
    compiled = dla.compile_model(build())
    dla.save(compiled.program, sys.argv[1])
    print(compiled)
