"""ShuffleNetV2 (Ma et al. 2018) as torchvision spells it: split, filter one half, concatenate, shuffle channels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from networks.network import Network, image_network


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    """[N, C, H, W] with channel `g * (C / groups) + i` moved to `i * groups + g`."""
    batch, channels, height, width = x.size()
    x = x.view(batch, groups, channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batch, channels, height, width)


def pointwise(inputs: int, outputs: int) -> list[nn.Module]:
    """1x1 convolution, batch norm, ReLU."""
    return [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def depthwise(channels: int, stride: int) -> list[nn.Module]:
    """3x3 convolution of each channel by itself, batch norm."""
    conv = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)
    return [conv, nn.BatchNorm2d(channels)]


class InvertedResidual(nn.Module):
    """With stride 1 half of the channels pass unchanged; with stride 2 both branches filter all of them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        half = outputs // 2
        self.stride = stride
        self.branch1 = nn.Sequential(*depthwise(inputs, stride), *pointwise(inputs, half)) if stride > 1 else None
        first = pointwise(inputs if stride > 1 else half, half)
        self.branch2 = nn.Sequential(*first, *depthwise(half, stride), *pointwise(half, half))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, outputs, H/stride, W/stride]."""
        if self.branch1 is None:
            x1, x2 = x.chunk(2, dim=1)
            out = torch.cat((x1, self.branch2(x2)), dim=1)
        else:
            out = torch.cat((self.branch1(x), self.branch2(x)), dim=1)
        return channel_shuffle(out, 2)


class ShuffleNetV2(nn.Module):
    """A stem, stages of (blocks, channels), a last convolution and a classifier."""

    def __init__(self, stages: tuple[tuple[int, int], ...], stem: int, last: int, classes: int) -> None:
        super().__init__()
        conv = nn.Conv2d(3, stem, 3, stride=2, padding=1, bias=False)
        self.conv1 = nn.Sequential(conv, nn.BatchNorm2d(stem), nn.ReLU(inplace=True))
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        layers = []
        channels = stem
        for blocks, outputs in stages:
            layers.append(InvertedResidual(channels, outputs, stride=2))
            layers += [InvertedResidual(outputs, outputs, stride=1) for _ in range(1, blocks)]
            channels = outputs
        self.stages = nn.Sequential(*layers)
        self.conv5 = nn.Sequential(*pointwise(channels, last))
        self.fc = nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        x = self.conv5(self.stages(self.maxpool(self.conv1(x))))
        return self.fc(x.mean([2, 3]))


def small() -> Network:
    """Two stages of two blocks; 32 x 32 images."""
    return image_network(ShuffleNetV2(((2, 16), (2, 24)), stem=8, last=32, classes=10), size=32)


def narrow() -> Network:
    """ShuffleNetV2 at few channels; 32 x 32 images."""
    return image_network(ShuffleNetV2(((4, 16), (8, 24), (4, 32)), stem=8, last=32, classes=10), size=32)


def full() -> Network:
    """ShuffleNetV2 at width 1."""
    stages = ((4, 116), (8, 232), (4, 464))
    return image_network(ShuffleNetV2(stages, stem=24, last=1024, classes=1000), size=224, batch=1)
