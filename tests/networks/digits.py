"""The digit classifiers of `programs/` in torch, with their trained weights and real images.

Images are f32 [batch, 8, 8] in 0..1. The weights lie as the instruction set reads them (programs/train_digits.py says
how), and are turned to torch's order.
"""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the name that PyTorch gives it everywhere

from networks.network import Network

PROGRAMS = Path(__file__).parents[2] / "programs"


class Classifier(nn.Module):
    """A model with the weights of `programs/digits_NAME.safetensors` as parameters, dots as underscores."""

    def __init__(self, name: str) -> None:
        super().__init__()
        for key, value in load_file(PROGRAMS / f"digits_{name}.safetensors").items():
            self.register_buffer(key.replace(".", "_"), value.contiguous())

    def linear(self, x: Tensor, name: str) -> Tensor:
        """X @ NAME_w + NAME_b."""
        return F.linear(x, getattr(self, f"{name}_w").T, getattr(self, f"{name}_b"))


class Mlp(Classifier):
    """Three layers."""

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 8, 8] -> logits [batch, 10]."""
        x = F.relu(F.linear(x.flatten(1), self.w1.T, self.b1))
        return F.linear(F.relu(F.linear(x, self.w2.T, self.b2)), self.w3.T, self.b3)


class Cnn(Classifier):
    """Four convolutions, one shortcut, one batch norm that is not folded."""

    def conv(self, x: Tensor, name: str, bias: Tensor | None) -> Tensor:
        """A 3x3 convolution that keeps the size; kernels lie as [out, KH, KW, in]."""
        return F.conv2d(x, getattr(self, f"{name}_w").permute(0, 3, 1, 2), bias, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 8, 8] -> logits [batch, 10]."""
        x = F.relu(self.conv(x.unsqueeze(1), "conv1", self.conv1_b))
        y = F.relu(self.conv(x, "conv2", self.conv2_b))
        x = F.max_pool2d(F.relu(self.conv(y, "conv3", self.conv3_b) + x), 2)
        x = self.conv(x, "conv4", None)
        x = F.relu(F.batch_norm(x, self.bn4_mean, self.bn4_var, self.bn4_gain, self.bn4_bias, eps=1e-5))
        return self.linear(x.mean((2, 3)), "fc")


class Transformer(Classifier):
    """Two layers over 16 patches of 2x2 pixels, four heads of 16."""

    def norm(self, x: Tensor, name: str) -> Tensor:
        """Layer norm over the last axis."""
        return F.layer_norm(x, (64,), getattr(self, f"{name}_gain"), getattr(self, f"{name}_bias"), 1e-5)

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 8, 8] -> logits [batch, 10]."""
        batch = x.shape[0]
        x = x.reshape(batch, 4, 2, 4, 2).permute(0, 1, 3, 2, 4).reshape(batch, 16, 4)
        x = self.linear(x, "embed") + self.pos
        for layer in ("l0", "l1"):
            qkv = self.linear(self.norm(x, f"{layer}_ln1"), f"{layer}_qkv").reshape(batch, 16, 3, 4, 16)
            q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
            heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, 16, 64)
            x = x + self.linear(heads, f"{layer}_proj")
            hidden = F.gelu(self.linear(self.norm(x, f"{layer}_ln2"), f"{layer}_fc1"))
            x = x + self.linear(hidden, f"{layer}_fc2")
        return self.linear(self.norm(x, "ln").mean(1), "head")


class Lstm(nn.Module):
    """Reads an image row by row; its weights are a `state_dict`."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)
        self.load_state_dict(load_file(PROGRAMS / "digits_lstm.safetensors"))

    def forward(self, x: Tensor) -> Tensor:
        """[batch, 8, 8] -> logits [batch, 10]."""
        return self.head(self.rnn(x)[0][:, -1])


MODELS = {"mlp": lambda: Mlp("mlp"), "cnn": lambda: Cnn("cnn"), "transformer": lambda: Transformer("transformer"),
          "lstm": Lstm}  # fmt: skip


def trained(name: str) -> Network:
    """One of `MODELS`, with the first two images of the test split."""
    images = load_file(PROGRAMS / "data" / "digits.safetensors")["test_images"][:2].float() / 16
    return Network(MODELS[name]().eval(), (images,), ("images",), ("logits",), {"images": {0: "batch"}})
