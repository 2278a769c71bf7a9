"""ResNet (He et al. 2015) as torchvision spells it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from networks.network import Network, image_network


def convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size (up to its stride); batch norm follows, so it has no bias."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class Basic(nn.Module):
    """Two 3x3 convolutions and a shortcut (ResNet-18 and -34)."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = convolution(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, width, H/stride, W/stride]."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions and a shortcut (ResNet-50 and deeper)."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int, downsample: nn.Module | None) -> None:
        super().__init__()
        self.conv1 = convolution(inputs, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = convolution(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = convolution(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, 4 * width, H/stride, W/stride]."""
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """Four stages of `depths` blocks; the first is `width` channels wide and each next one twice as wide."""

    def __init__(self, block: type[Basic | Bottleneck], depths: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.block = block
        self.channels = width
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        stages = [self._stage(width << i, depth, 1 if i == 0 else 2) for i, depth in enumerate(depths)]
        self.stages = nn.Sequential(*stages)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(self.channels, classes)

    def _stage(self, width: int, depth: int, stride: int) -> nn.Sequential:
        outputs = width * self.block.expansion
        downsample = None
        if stride != 1 or self.channels != outputs:
            downsample = nn.Sequential(convolution(self.channels, outputs, 1, stride), nn.BatchNorm2d(outputs))
        blocks = [self.block(self.channels, width, stride, downsample)]
        self.channels = outputs
        blocks += [self.block(outputs, width, 1, None) for _ in range(1, depth)]
        return nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.stages(x))
        return self.fc(torch.flatten(x, 1))


def small(block: type[Basic | Bottleneck] = Bottleneck) -> Network:
    """Every kind of block (with and without a convolution on the shortcut) at 8 channels; 32 x 32 images."""
    return image_network(ResNet(block, (2, 1, 1, 1), width=8, classes=10), size=32)


def small_basic() -> Network:
    """`small` with the blocks of ResNet-18."""
    return small(Basic)


def narrow() -> Network:
    """ResNet-50 at 8 channels; 32 x 32 images."""
    return image_network(ResNet(Bottleneck, (3, 4, 6, 3), width=8, classes=10), size=32)


def full() -> Network:
    """ResNet-50."""
    return image_network(ResNet(Bottleneck, (3, 4, 6, 3), width=64, classes=1000), size=224, batch=1)
