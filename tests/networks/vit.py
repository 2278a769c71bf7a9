"""ViT (Dosovitskiy et al. 2020) as torchvision (nn.MultiheadAttention) and as transformers spells it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks.attention import eager, split_heads
from networks.network import Network, randomise


@dataclass(frozen=True)
class Config:
    """Sizes; `attention` is "multihead" (torchvision), "sdpa" or "eager" (transformers)."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    image: int
    patch: int
    classes: int
    attention: str = "multihead"


class Attention(nn.Module):
    """Self-attention with three projections (transformers)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.spelling = config.attention
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.dense = nn.Linear(config.hidden, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, hidden] -> [B, S, hidden]."""
        q, k, v = (split_heads(project(x), self.heads) for project in (self.query, self.key, self.value))
        attend = eager if self.spelling == "eager" else functional.scaled_dot_product_attention
        out = attend(q, k, v).transpose(1, 2).contiguous()
        return self.dense(out.reshape((*out.size()[:-2], -1)))


class Multihead(nn.Module):
    """Self-attention with one packed projection (torchvision)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(config.hidden, config.heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, hidden] -> [B, S, hidden]."""
        out, _ = self.self_attention(x, x, x, need_weights=False)
        return out


class Layer(nn.Module):
    """Norm, attention, shortcut; norm, feed-forward network, shortcut."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.hidden, eps=1e-6)
        self.attention = (Multihead if config.attention == "multihead" else Attention)(config)
        self.ln_2 = nn.LayerNorm(config.hidden, eps=1e-6)
        first, second = nn.Linear(config.hidden, config.intermediate), nn.Linear(config.intermediate, config.hidden)
        self.mlp = nn.Sequential(first, nn.GELU(), nn.Dropout(0.0), second, nn.Dropout(0.0))

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, hidden] -> [B, S, hidden]."""
        x = x + self.attention(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class ViT(nn.Module):
    """Patches by a convolution, a class token, positions, layers, and a head on the class token."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.hidden = config.hidden
        self.conv_proj = nn.Conv2d(3, config.hidden, config.patch, stride=config.patch)
        patches = (config.image // config.patch) ** 2
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.hidden))
        self.pos_embedding = nn.Parameter(torch.zeros(1, patches + 1, config.hidden))
        self.layers = nn.Sequential(*(Layer(config) for _ in range(config.layers)))
        self.ln = nn.LayerNorm(config.hidden, eps=1e-6)
        self.head = nn.Linear(config.hidden, config.classes)

    def forward(self, x: Tensor) -> Tensor:
        """[N, 3, image, image] -> [N, classes]."""
        batch = x.shape[0]
        x = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(batch, -1, -1), x], dim=1)
        x = self.ln(self.layers(x + self.pos_embedding))
        return self.head(x[:, 0])


def _vit(config: Config, batch: int) -> Network:
    pixels = torch.randn(batch, 3, config.image, config.image, generator=torch.Generator().manual_seed(2))
    return Network(randomise(ViT(config)), (pixels,), ("pixels",), ("logits",), {"pixels": {0: "batch"}})


def small(attention: str = "multihead", layers: int = 2) -> Network:
    """Layers of 32 channels; 16 x 16 images in patches of 4 x 4."""
    return _vit(Config(layers, 32, 4, 64, image=16, patch=4, classes=10, attention=attention), batch=2)


def full(attention: str = "multihead") -> Network:
    """ViT-B/16."""
    return _vit(Config(12, 768, 12, 3072, image=224, patch=16, classes=1000, attention=attention), batch=1)
