"""The convolutional network of `programs/digits_cnn.dla`, built in Python from the same weights.

python programs/models/digits_cnn.py digits_cnn.dlab
dla run digits_cnn.dlab --input images=programs/data/digits.safetensors#test_images --output out.npz
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
SPELLING = Spelling("_", {"weight": "{}_w", "bias": "{}_b", "shift": "{}_bias"}, out_first=False)


def build() -> Graph:
    """Images u8 [batch, 8, 8] -> p f32 [batch, 10] and digit i32 [batch]."""
    m = Layers("digits_cnn", Weights.of_file(HERE.parent / "digits_cnn.safetensors", spelling=SPELLING))
    images = m.input("images", DType.U8, (m.symbol("batch", 1797), 8, 8))
    x = m.mul(m.unsqueeze(m.cast(images, DType.F32), -1), 1 / 16)  # one channel; pixels are 0 to 16
    x = m.act("relu", m.conv2d(x, 32, "conv1"))
    y = m.act("relu", m.conv2d(x, 32, "conv2"))
    x = m.act("relu", m.add(m.conv2d(y, 32, "conv3"), x))
    x = m.pool("max", x, window=(2, 2), strides=(2, 2))
    x = m.act("relu", m.batch_norm(m.conv2d(x, 64, "conv4", bias=False), "bn4"))
    p = m.softmax(m.linear(m.reduce("mean", x, (1, 2)), 10, "fc"))
    m.output("p", p)
    m.output("digit", m.reduce("argmax", p, (1,), dtype=DType.I32))
    return m.finish()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".dlab"):
        sys.exit(__doc__)
    compiled = dla.compile_model(build())
    dla.save(compiled.program, sys.argv[1])
    print(compiled)
