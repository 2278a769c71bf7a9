"""Attention and its masks in the spellings that Hugging Face's transformers has used, old and new."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

LOWEST = torch.finfo(torch.float32).min  # what stands for minus infinity in masks that are added


def eager(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """softmax(q k' / sqrt(d) + mask) v of q [B, H, Q, D], k and v [B, H, K, D] and a mask to add, [B|1, 1, Q|1, K]."""
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.size(-1))
    if mask is not None:
        scores = scores + mask
    return torch.matmul(functional.softmax(scores, dim=-1), v)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, S, D] -> [B, S, H * D]."""
    x = x.permute(0, 2, 1, 3).contiguous()
    return x.view((*x.size()[:-2], x.size(-2) * x.size(-1)))


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, S, heads * D] -> [B, heads, S, D]."""
    return x.view((*x.size()[:-1], heads, x.size(-1) // heads)).permute(0, 2, 1, 3)


def added_padding(mask: Tensor) -> Tensor:
    """0 where `mask` [B, K] is 1, the lowest float where it is 0: [B, 1, 1, K], by arithmetic (BERT, eager)."""
    extended = mask[:, None, None, :].to(dtype=torch.float32)
    return (1.0 - extended) * LOWEST


def filled_padding(mask: Tensor, query_length: int) -> Tensor:
    """`added_padding` by masked_fill and expanded to [B, 1, Q, K] (BERT with scaled_dot_product_attention)."""
    batch, key_length = mask.size()
    expanded = mask[:, None, None, :].expand(batch, 1, query_length, key_length).to(torch.float32)
    inverted = 1.0 - expanded
    return inverted.masked_fill(inverted.to(torch.bool), LOWEST)


def allowed_padding(mask: Tensor, query_length: int) -> Tensor:
    """True where `mask` [B, K] is 1, bool [B, 1, Q, K] (recent transformers)."""
    batch, key_length = mask.size()
    return mask[:, None, None, :].to(torch.bool).expand(batch, 1, query_length, key_length)


def triangle(positions: Tensor, key_length: int, padding: Tensor | None) -> Tensor:
    """The causal mask to add, [B|1, 1, Q, K], by full, triu and a product (Llama, eager).

    `positions` i64 [Q] are the queries' places among the keys; `padding` i64 [B, K] is 1 for tokens. With it the
    mask is assigned to a slice of itself, which exports as a scatter.
    """
    mask = torch.full((positions.shape[0], key_length), LOWEST)
    mask = torch.triu(mask, diagonal=1)
    mask = mask * (torch.arange(key_length) > positions.reshape(-1, 1))
    mask = mask[None, None, :, :]
    if padding is None:
        return mask
    mask = mask.expand(padding.shape[0], 1, -1, -1).clone()
    length = padding.shape[-1]
    masked = mask[:, :, :, :length] + padding[:, None, None, :]
    masked = masked == 0
    mask[:, :, :, :length] = mask[:, :, :, :length].masked_fill(masked, LOWEST)
    return mask


def compared(positions: Tensor, key_length: int, padding: Tensor | None) -> Tensor:
    """The causal mask as bool [B|1, 1, Q, K], True where allowed, by comparing places (recent transformers)."""
    keys = torch.arange(key_length)
    allowed = keys[None, None, None, :] <= positions[None, None, :, None]
    if padding is None:
        return allowed
    rows = torch.arange(padding.shape[0])
    return allowed & padding.to(torch.bool)[rows[:, None, None, None], keys[None, None, None, :]]
