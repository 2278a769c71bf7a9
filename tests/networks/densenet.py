"""DenseNet (Huang et al. 2016) as torchvision spells it: every layer reads all the layers before it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.network import Network, image_network


class DenseLayer(nn.Module):
    """Norm, ReLU, 1x1 convolution; norm, ReLU, 3x3 convolution to `growth` channels."""

    def __init__(self, inputs: int, growth: int, widening: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inputs, widening * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(widening * growth)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(widening * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Tensors [N, C_i, H, W], the sum of C_i being `inputs` -> [N, growth, H, W]."""
        bottleneck = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(bottleneck)))


class DenseBlock(nn.Module):
    """`depth` dense layers; the output is the input and all their outputs, concatenated."""

    def __init__(self, inputs: int, depth: int, growth: int, widening: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DenseLayer(inputs + i * growth, growth, widening) for i in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs, H, W] -> [N, inputs + depth * growth, H, W]."""
        features = [x]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


def transition(inputs: int) -> nn.Sequential:
    """Half the channels and half the size."""
    conv = nn.Conv2d(inputs, inputs // 2, 1, bias=False)
    return nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU(inplace=True), conv, nn.AvgPool2d(2, stride=2))


class DenseNet(nn.Module):
    """The stem, dense blocks of `depths` layers with transitions between them, and a classifier."""

    def __init__(self, depths: tuple[int, ...], growth: int, stem: int, widening: int, classes: int) -> None:
        super().__init__()
        conv = nn.Conv2d(3, stem, 7, stride=2, padding=3, bias=False)
        pool = nn.MaxPool2d(3, stride=2, padding=1)
        layers: list[nn.Module] = [conv, nn.BatchNorm2d(stem), nn.ReLU(inplace=True), pool]
        channels = stem
        for index, depth in enumerate(depths):
            layers.append(DenseBlock(channels, depth, growth, widening))
            channels += depth * growth
            if index + 1 < len(depths):
                layers.append(transition(channels))
                channels //= 2
        layers.append(nn.BatchNorm2d(channels))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, H, W] -> [N, classes]."""
        x = functional.relu(self.features(x), inplace=True)
        x = torch.flatten(functional.adaptive_avg_pool2d(x, (1, 1)), 1)
        return self.classifier(x)


def small() -> Network:
    """Two blocks of three and two layers that grow by 4 channels; 32 x 32 images."""
    return image_network(DenseNet((3, 2), growth=4, stem=8, widening=2, classes=10), size=32)


def narrow() -> Network:
    """DenseNet-121 growing by 4 channels; 32 x 32 images."""
    return image_network(DenseNet((6, 12, 24, 16), growth=4, stem=8, widening=2, classes=10), size=32)


def full() -> Network:
    """DenseNet-121."""
    return image_network(DenseNet((6, 12, 24, 16), growth=32, stem=64, widening=4, classes=1000), 224, batch=1)
