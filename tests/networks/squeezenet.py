"""SqueezeNet 1.1 (Iandola et al. 2016) as torchvision spells it: no batch norm, pools that round up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from networks.network import Network, image_network


class Fire(nn.Module):
    """A 1x1 convolution to `squeeze` channels, then 1x1 and 3x3 convolutions side by side, `expand` channels each."""

    def __init__(self, inputs: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(inputs, squeeze, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeeze, expand, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeeze, expand, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, 2 * expand, H, W]."""
        x = self.squeeze_activation(self.squeeze(x))
        sides = [self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))]
        return torch.cat(sides, 1)


class SqueezeNet(nn.Module):
    """A stem, groups of fire modules (squeeze, expand) with pools between the groups, and a 1x1 classifier."""

    def __init__(self, groups: tuple[tuple[tuple[int, int], ...], ...], stem: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, stem, 3, stride=2), nn.ReLU(inplace=True)]
        channels = stem
        for group in groups:
            layers.append(nn.MaxPool2d(3, stride=2, ceil_mode=True))
            for squeeze, expand in group:
                layers.append(Fire(channels, squeeze, expand))
                channels = 2 * expand
        self.features = nn.Sequential(*layers)
        conv = nn.Conv2d(channels, classes, 1)
        self.classifier = nn.Sequential(nn.Dropout(0.5), conv, nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1)))

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        return torch.flatten(self.classifier(self.features(x)), 1)


def small() -> Network:
    """Two groups of fire modules; at 34 x 34 pixels a pool's last window hangs over the edge."""
    return image_network(SqueezeNet((((4, 8),), ((6, 12), (6, 12))), stem=8, classes=10), size=34)


def narrow() -> Network:
    """SqueezeNet 1.1 at an eighth of its width; 34 x 34 images."""
    groups = (((2, 8), (2, 8)), ((4, 16), (4, 16)), ((6, 24), (6, 24), (8, 32), (8, 32)))
    return image_network(SqueezeNet(groups, stem=8, classes=10), size=34)


def full() -> Network:
    """SqueezeNet 1.1."""
    groups = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))
    return image_network(SqueezeNet(groups, stem=64, classes=1000), size=224, batch=1)
