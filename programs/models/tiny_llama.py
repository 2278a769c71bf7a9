"""A decoder of the shape of Llama, small enough to watch: it reads a prompt, and then writes token by token.

python programs/models/tiny_llama.py tiny_llama.dlab     # compiles, and writes a few tokens

Its weights are made up, so what it writes means nothing; those of a real Llama in one .safetensors file go in by
`Weights.of_file("model.safetensors")` and the sizes of its config.json.
"""

from __future__ import annotations

import sys

import numpy as np

import dla
from dla.compiler.graph import Graph
from dla.compiler.models.decoder import DecoderConfig, decoder
from dla.compiler.models.weights import Weights

CONFIG = DecoderConfig(vocabulary=64, width=64, layers=2, heads=4, kv_heads=2, hidden=128, context=64, chunk=16)


def build() -> Graph:
    """Ids i32 [1, length], after `past` others -> logits f32 [1, length, 64] and next i32 [1, length]."""
    return decoder(CONFIG, Weights.random(seed=0))


def write(session: dla.Session, prompt: list[int], count: int) -> list[int]:
    """`count` tokens after `prompt`: one run for all of the prompt, then one for each token."""
    given, past, written = np.array([prompt], np.int32), 0, []
    for _ in range(count):
        result = session.run({"ids": given}, {"past": past})  # keys and values of earlier runs are in its state
        past += given.shape[1]
        given = np.asarray(result["next"])[:, -1:]
        written.append(int(given[0, 0]))
    return written


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".dlab"):
        sys.exit(__doc__)
    compiled = dla.compile_model(build())
    dla.save(compiled.program, sys.argv[1])
    print(compiled)
    print("it writes", write(dla.Machine("auto").load(compiled.program), [1, 2, 3], 10))
