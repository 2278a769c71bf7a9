"""A language model of the shape of Llama, small enough to watch: it reads a prompt and writes, all in one run.

python programs/models/tiny_llama.py tiny_llama.dlab     # compiles, and writes a few tokens

Its weights are made up, so what it writes means nothing; those of a real Llama in one .safetensors file go in by
`Weights.of_file("model.safetensors")` and the sizes of its config.json.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np

import dla
from dla.compiler.graph import Graph
from dla.compiler.models.decoder import DecoderConfig, generator
from dla.compiler.models.weights import Weights

CONFIG = DecoderConfig(vocabulary=64, width=64, layers=2, heads=4, kv_heads=2, hidden=128, context=64, chunk=16)


def build() -> Graph:
    """Ids i32 [1, length], after `past` others -> tokens i32 [1, count], up to 16 of them."""
    return generator(CONFIG, Weights.random(seed=0), count=16)


class Conversation:
    """A text that is written in turns; the machine keeps what it has read of it."""

    def __init__(self, session: dla.Session) -> None:
        self._session, self._past = session, 0
        self._unread: list[int] = []  # the last token written is read with what follows it

    def write(self, prompt: Sequence[int], count: int) -> list[int]:
        """`count` tokens after all before, and `prompt`; together with the last one written, at most 16 of these."""
        ids = np.array([[*self._unread, *prompt]], np.int32)
        tokens = self._session.run({"ids": ids}, {"past": self._past, "count": count})["tokens"]
        self._past += ids.shape[1] + count - 1
        self._unread = [int(tokens[0, -1])]
        return [int(token) for token in tokens[0]]


if __name__ == "__main__":
    if len(sys.argv) != 2 or not sys.argv[1].endswith(".dlab"):
        sys.exit(__doc__)
    compiled = dla.compile_model(build())
    dla.save(compiled.program, sys.argv[1])
    print(compiled)
    conversation = Conversation(dla.Machine("auto").load(compiled.program))
    print("it writes", conversation.write([1, 2, 3], 10))
    print("and after [4, 5]", conversation.write([4, 5], 10))
