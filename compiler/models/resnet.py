"""ResNet (He et al., "Deep Residual Learning for Image Recognition", 2015), with torchvision's names."""

from __future__ import annotations

from dataclasses import dataclass

from dla.compiler.graph import Graph, Value
from dla.compiler.models.layers import Layers
from dla.compiler.models.weights import Weights
from dla.isa.dtypes import DType


@dataclass(frozen=True)
class ResNetConfig:
    """ResNet-50 by default. Each of `depths` is a stage of blocks, twice as wide as the stage before it."""

    depths: tuple[int, ...] = (3, 4, 6, 3)
    bottleneck: bool = True
    width: int = 64
    classes: int = 1000
    size: int = 224
    channels: int = 3
    batch: int = 64  # the largest
    dtype: DType = DType.F32


def resnet(config: ResNetConfig, weights: Weights) -> Graph:
    """Images [batch, size, size, channels], channels last -> logits [batch, classes]."""
    m = Layers("resnet", weights, config.dtype)
    shape = (m.symbol("batch", config.batch), config.size, config.size, config.channels)
    x = m.input("images", config.dtype, shape)
    x = m.act("relu", _conv_bn(m, x, config.width, ("conv1", "bn1"), kernel=7, stride=2))
    x = m.pool("max", x, window=(3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    for stage, depth in enumerate(config.depths):
        for number in range(depth):
            with m.scope(f"layer{stage + 1}"), m.scope(str(number)):
                x = _block(m, x, config.width << stage, 2 if stage and not number else 1, bottleneck=config.bottleneck)
    m.output("logits", m.linear(m.reduce("mean", x, (1, 2)), config.classes, "fc"))
    return m.finish()


def _block(m: Layers, x: Value, width: int, stride: int, *, bottleneck: bool) -> Value:
    """Convolutions, and a shortcut around them: 1x1, 3x3, 1x1 in a bottleneck, else 3x3, 3x3."""
    if bottleneck:
        y = m.act("relu", _conv_bn(m, x, width, ("conv1", "bn1"), kernel=1))
        y = m.act("relu", _conv_bn(m, y, width, ("conv2", "bn2"), stride=stride))
        y = _conv_bn(m, y, 4 * width, ("conv3", "bn3"), kernel=1)
    else:
        y = m.act("relu", _conv_bn(m, x, width, ("conv1", "bn1"), stride=stride))
        y = _conv_bn(m, y, width, ("conv2", "bn2"))
    if x.dims != y.dims:
        x = _conv_bn(
            m, x, 4 * width if bottleneck else width, ("downsample.0", "downsample.1"), kernel=1, stride=stride
        )
    return m.act("relu", m.add(y, x))


def _conv_bn(
    m: Layers, x: Value, outputs: int, names: tuple[str, str], *, kernel: int = 3, stride: int = 1
) -> Value:  # fmt: skip
    return m.batch_norm(m.conv2d(x, outputs, names[0], kernel=kernel, stride=stride, bias=False), names[1])
