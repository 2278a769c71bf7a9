"""An LSTM that reads handwritten digits row by row; its weights are a PyTorch `state_dict`.

python programs/models/digits_lstm.py digits_lstm.dlab
dla run digits_lstm.dlab --input images=programs/data/digits.safetensors#test_images --output out.npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import dla
from dla.compiler.graph import Graph
from dla.compiler.models.layers import Layers
from dla.compiler.models.recurrent import recurrent_layer
from dla.compiler.models.weights import Weights
from dla.isa.dtypes import DType

HERE = Path(__file__).parent


def build() -> Graph:
    """Images u8 [batch, 8, 8] -> p f32 [batch, 10] and digit i32 [batch]."""
    m = Layers("digits_lstm", Weights.of_file(HERE.parent / "digits_lstm.safetensors"))
    images = m.input("images", DType.U8, (m.symbol("batch", 1797), 8, 8))
    rows = m.mul(m.cast(images, DType.F32), 1 / 16)  # pixels are 0 to 16
    p = m.softmax(m.linear(recurrent_layer(m, "lstm", rows, 64, "rnn").last, 10, "head"))
    m.output("p", p)
    m.output("digit", m.reduce("argmax", p, (1,), dtype=DType.I32))
    return m.finish()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".dlab"):
        sys.exit(__doc__)
    compiled = dla.compile_model(build())
    dla.save(compiled.program, sys.argv[1])
    print(compiled)
