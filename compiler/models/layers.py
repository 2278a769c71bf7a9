"""Layers on top of the operations of GraphBuilder, with weights by name.

    m = Layers("perceptron", Weights.of_file("perceptron.safetensors"))
    x = m.input("x", DType.F32, (m.symbol("batch", 1024), 64))
    h = m.act("relu", m.linear(x, 128, "fc1"))
    m.output("p", m.softmax(m.linear(h, 10, "fc2")))
    graph = m.finish()

Sequences are [batch, length, width]; images are channels-last, [batch, height, width, channels].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from dla.compiler.builder import GraphBuilder
from dla.compiler.dims import Dim
from dla.compiler.graph import Graph, Value
from dla.compiler.models.weights import Weights
from dla.compiler.transpose import transposed
from dla.isa.dtypes import Array, DType, convert
from dla.isa.errors import ModelError


class Layers(GraphBuilder):
    """A GraphBuilder whose layers find their weights by name and hold them as `dtype`.

    Weights that are missing or do not fit are reported by `finish`, all at once.
    """

    def __init__(self, name: str, weights: Weights, dtype: DType = DType.F32) -> None:
        super().__init__(name)
        self.weights, self.dtype = weights, dtype
        self._scope: tuple[str, ...] = ()
        self._problems: list[str] = []
        self._held: dict[tuple[str, tuple[int, ...]], Value] = {}
        self._turned: dict[tuple[int, tuple[int, ...]], Value] = {}  # of what is held: small constants, transposed

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Let the names of layers inside begin with `name`."""
        outer, self._scope = self._scope, (*self._scope, name)
        try:
            yield
        finally:
            self._scope = outer

    def inner(self, name: str) -> Layers:
        """Layers for the step of a loop: the same weights, each of them there once."""
        inside = Layers(name, self.weights, self.dtype)
        inside._scope, inside._problems = self._scope, self._problems
        inside._held, inside._turned = self._held, self._turned
        return inside

    def finish(self) -> Graph:
        """The graph. Raises ModelError if weights are missing or do not fit, naming all of them."""
        if self._problems:
            count = len(self._problems)
            what = "a weight does" if count == 1 else f"{count} weights do"
            raise ModelError(f"{what} not fit the model {self.graph.name!r}:\n  " + "\n  ".join(self._problems))
        return self.graph

    def part_of(self, layer: str, part: str, shape: Sequence[int]) -> Value:
        """One part of `layer` as a constant, the same one whenever it is asked for."""
        self.label = layer = self._full(layer)
        key = self.weights.spelling.name(layer, part), tuple(shape)
        if key not in self._held:
            self._held[key] = self.constant(self._taken(layer, part, key[1]), self.dtype, name=key[0])
        return self._held[key]

    def _full(self, layer: str) -> str:
        """The name of `layer` with those of the scopes around it."""
        return self.weights.spelling.separator.join((*self._scope, layer))

    def _taken(self, layer: str, part: str, shape: tuple[int, ...]) -> Array:
        """The array of one part; zeros where there is none that fits, which `finish` will say."""
        try:
            return self.weights.take(layer, part, shape)
        except ModelError as error:
            self._problems.append(error.message)
            return np.broadcast_to(np.zeros((), np.float32), shape)

    def matrix(self, layer: str, inputs: Dim, outputs: int, part: str = "weight") -> Value:
        """The [inputs, outputs] weight of a product."""
        fixed = _sized(layer, inputs)
        if not self.weights.spelling.out_first:
            return self.part_of(layer, part, (fixed, outputs))
        return self._named_as(self.part_of(layer, part, (outputs, fixed)), (1, 0))

    def joint_matrix(self, layers: Mapping[str, int], inputs: Dim, *, interleaved: bool = False) -> Value:
        """The [inputs, outputs] weight of the products of one input by `layers`, with their outputs, as one product.

        Its columns are those of the first layer, then those of the next one; or, `interleaved`, one of each in turn.
        """
        names = [self._full(layer) for layer in layers]
        fixed, out_first = _sized(names[0], inputs), self.weights.spelling.out_first
        self.label = "+".join([names[0], *list(layers)[1:]])[:200]
        key = self.label, (*layers.values(), int(interleaved))
        if key not in self._held:
            joint = np.empty((sum(layers.values()), fixed), self.dtype.numpy)
            at = 0
            for number, (layer, outputs) in enumerate(zip(names, layers.values(), strict=True)):
                array = self._taken(layer, "weight", (outputs, fixed) if out_first else (fixed, outputs))
                rows = slice(number, None, len(names)) if interleaved else slice(at, at + outputs)
                joint[rows] = convert(array if out_first else transposed(array), self.dtype)
                at += outputs
            self._held[key] = self.constant(joint, name=self.label)
        return self._named_as(self._held[key], (1, 0))

    def _named_as(self, x: Value, perm: tuple[int, ...]) -> Value:
        """X transposed; small constants are so at once, and keep their name."""
        if (id(x), perm) in self._turned:
            return self._turned[id(x), perm]
        turned = self.transpose(x, perm)
        turned.name = x.name
        if turned.constant is not None:
            self._turned[id(x), perm] = turned
        return turned

    # -- layers

    def joint(self, x: Value, layers: Mapping[str, int]) -> Value:
        """The products of x by the weights of `layers`, one after the other: [..., C] -> [..., all their outputs]."""
        return self.matmul(x, self.joint_matrix(layers, x.dims[-1]))

    def linear(self, x: Value, outputs: int, name: str, *, bias: bool = True, scale: float = 1.0) -> Value:
        """Scale * x @ weight + bias: [..., C] -> [..., outputs]."""
        weight = self.matrix(name, x.dims[-1], outputs)
        return self.matmul(x, weight, bias=self.part_of(name, "bias", (outputs,)) if bias else None, alpha=scale)

    def embedding(self, ids: Value, count: int, width: int, name: str) -> Value:
        """Rows of a table [count, width] by i32 or i64 ids [...]: [..., width]."""
        return self.gather(self.table(name, count, width), ids)

    def table(self, name: str, count: int, width: int) -> Value:
        """The table of an embedding, [count, width]."""
        return self.part_of(name, "table", (count, width))

    def layer_norm(self, x: Value, name: str, *, eps: float = 1e-5) -> Value:
        """Ba et al. 2016, over the last axis."""
        gain, shift = (self.part_of(name, part, _width(x)) for part in ("gain", "shift"))
        return self.norm("layer", x, gain, shift, eps=eps)

    def rms_norm(self, x: Value, name: str, *, eps: float = 1e-5) -> Value:
        """Zhang and Sennrich 2019, over the last axis."""
        return self.norm("rms", x, self.part_of(name, "gain", _width(x)), eps=eps)

    def batch_norm(self, x: Value, name: str, *, eps: float = 1e-5) -> Value:
        """Ioffe and Szegedy 2015, with the statistics of training, over the last axis."""
        gain, shift, mean, var = (self.part_of(name, part, _width(x)) for part in ("gain", "shift", "mean", "var"))
        return self.norm("batch", x, gain, shift, mean=mean, var=var, eps=eps)

    def conv2d(
        self, x: Value, outputs: int, name: str, *, kernel: int = 3, stride: int = 1, groups: int = 1,
        bias: bool = True,
    ) -> Value:  # fmt: skip
        """Convolution of x [N, H, W, C], padded so that stride 1 keeps an odd kernel's size: [N, H', W', outputs]."""
        (channels,) = _width(x)
        inputs = channels // groups
        if self.weights.spelling.out_first:
            weight = self._named_as(self.part_of(name, "weight", (outputs, inputs, kernel, kernel)), (0, 2, 3, 1))
        else:
            weight = self.part_of(name, "weight", (outputs, kernel, kernel, inputs))
        return self.conv(x, weight, bias=self.part_of(name, "bias", (outputs,)) if bias else None,
                         strides=(stride, stride), pads=(kernel // 2,) * 4, groups=groups)  # fmt: skip

    def mlp(self, x: Value, hidden: int, names: Sequence[str] = ("fc1", "fc2"), *, act: str = "gelu") -> Value:
        """Two products with a function between them: [..., C] -> [..., hidden] -> [..., C]."""
        (width,) = _width(x)
        return self.linear(self.act(act, self.linear(x, hidden, names[0])), width, names[1])

    def swiglu(self, x: Value, hidden: int, names: Sequence[str] = ("gate_proj", "up_proj", "down_proj")) -> Value:
        """Shazeer 2020: (silu(x @ gate) * (x @ up)) @ down, without biases: [..., C] -> [..., C]."""
        (width,) = _width(x)
        weight = self.joint_matrix(dict.fromkeys(names[:2], hidden), width, interleaved=True)
        gated = self.emit("GEMM", [x, weight, None, None, None, None], sub="glu", unit="silu")
        return self.linear(gated, width, names[2], bias=False)


def _sized(layer: str, inputs: Dim) -> int:
    """The number of columns over which `layer` is a product, which must be known."""
    if not isinstance(inputs, int):
        raise ModelError(f"{layer} is a product over {inputs} columns: that size must be constant")
    return inputs


def _width(x: Value) -> tuple[int]:
    """The constant size of the last axis, as a shape."""
    width = x.dims[-1]
    if not isinstance(width, int):
        raise ModelError(f"a layer over {width} columns: that size must be constant")
    return (width,)
