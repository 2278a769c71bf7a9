"""MobileNetV2 (Sandler et al. 2018) as torchvision spells it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.network import Network, image_network

# Of each stage: expansion, channels, blocks, stride of the first block.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm and ReLU6."""
    conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6(inplace=True))


class InvertedResidual(nn.Module):
    """Widen by a 1x1 convolution, filter each channel by itself (3x3), narrow again without an activation."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.use_shortcut = stride == 1 and inputs == outputs
        layers: list[nn.Module] = [] if expansion == 1 else [unit(inputs, hidden, 1)]
        layers += [unit(hidden, hidden, 3, stride, groups=hidden)]
        layers += [nn.Conv2d(hidden, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H/stride, W/stride]."""
        return x + self.conv(x) if self.use_shortcut else self.conv(x)


class MobileNetV2(nn.Module):
    """The stem, `stages` of inverted residuals and a classifier."""

    def __init__(self, stages: tuple[tuple[int, ...], ...], stem: int, last: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [unit(3, stem, 3, stride=2)]
        channels = stem
        for expansion, outputs, blocks, stride in stages:
            for index in range(blocks):
                layers.append(InvertedResidual(channels, outputs, stride if index == 0 else 1, expansion))
                channels = outputs
        layers.append(unit(channels, last, 1))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        x = functional.adaptive_avg_pool2d(self.features(x), (1, 1))
        return self.classifier(torch.flatten(x, 1))


def small() -> Network:
    """Three stages, among them blocks with and without expansion and shortcut; 32 x 32 images."""
    return image_network(MobileNetV2(((1, 8, 1, 1), (4, 12, 2, 2), (4, 16, 2, 1)), 8, 32, classes=10), size=32)


def narrow() -> Network:
    """MobileNetV2 at an eighth of its width; 32 x 32 images."""
    stages = tuple((expansion, max(8, outputs // 8), *rest) for expansion, outputs, *rest in STAGES)
    return image_network(MobileNetV2(stages, stem=8, last=32, classes=10), size=32)


def full() -> Network:
    """MobileNetV2 at width 1.0."""
    return image_network(MobileNetV2(STAGES, stem=32, last=1280, classes=1000), size=224, batch=1)
