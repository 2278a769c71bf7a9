"""Train the four digit classifiers whose weights the example programs load.

Run it from the root of the repository (about two minutes on one CPU core):

    pip install ".[train]"                # PyTorch and scikit-learn
    python programs/train_digits.py --out programs

It writes, below the folder given by `--out`:

    data/digits.safetensors            1,797 real 8x8 images, split into train and test
    digits_mlp.safetensors             64-128-64-10 perceptron
    digits_cnn.safetensors             four convolutions, one residual connection
    digits_transformer.safetensors     two pre-norm layers over 16 patches of 2x2 pixels
    digits_lstm.safetensors            an LSTM that reads an image row by row, with PyTorch's names

Images are the "Optical Recognition of Handwritten Digits" set that ships inside scikit-learn.
A pixel is an integer 0..16; every model reads it as pixel / 16. The weights are stored the way the
instructions read them, in f32:

    GEMM   out[M, N] = a[M, K] @ b[K, N]       a linear layer's weight is [in, out]
    CONV   activations are NHWC                a convolution's weight is [out, KH, KW, in]

Seeds, thread count and schedule are fixed, so one machine and one PyTorch version give the same
bytes every time. Epochs and rates were chosen on 300 images set aside from the training split; the
test split is used once per model, after training, for the printed accuracy, and chooses nothing.
"""

from __future__ import annotations

import math
from pathlib import Path

import click
import torch
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # the name that PyTorch gives it everywhere

SEED = 0
TEST_IMAGES = 450
PIXEL_MAX = 16.0
BATCH = 64
EPS = 1e-5  # of every batch norm and layer norm

Weights = dict[str, Tensor]


class Network(nn.Module):
    """A classifier that maps pixels f32[batch, 8, 8] in 0..1 to logits f32[batch, 10]."""

    def export(self) -> Weights:
        """Return the weights in the layout of the instruction set."""
        raise NotImplementedError


def load_split() -> Weights:
    """Return the images, u8[n, 8, 8] in 0..16, and labels, i32[n], of both splits."""
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.images.astype("uint8"),
        digits.target.astype("int32"),
        test_size=TEST_IMAGES,
        stratify=digits.target,
        random_state=SEED,
    )
    arrays = {
        "train_images": train_x,
        "train_labels": train_y,
        "test_images": test_x,
        "test_labels": test_y,
    }
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def normalise(images: Tensor) -> Tensor:
    """Map u8 pixels 0..16 to f32 pixels 0..1."""
    return images.float() / PIXEL_MAX


def augment(pixels: Tensor) -> Tensor:
    """Shift, rotate, scale and shear each image of f32[batch, 8, 8] a little, at random.

    Bounds: 1 pixel of shift, 0.2 rad (11 degrees) of rotation, 12 % of scale, 0.15 of shear.
    """
    batch = len(pixels)

    def uniform(bound: float) -> Tensor:
        return (torch.rand(batch) * 2 - 1) * bound

    angle, shear = uniform(0.2), uniform(0.15)
    scale_x, scale_y = 1 + uniform(0.12), 1 + uniform(0.12)
    one_pixel = 2 / pixels.shape[-1]  # affine_grid spans the image with -1..1
    rows = [
        torch.stack([scale_x * angle.cos(), shear - angle.sin(), uniform(one_pixel)], dim=1),
        torch.stack([angle.sin(), scale_y * angle.cos(), uniform(one_pixel)], dim=1),
    ]
    grid = F.affine_grid(torch.stack(rows, dim=1), [batch, 1, 8, 8], align_corners=False)
    return F.grid_sample(pixels.unsqueeze(1), grid, align_corners=False).squeeze(1)


def linear(name: str, layer: nn.Linear) -> Weights:
    """Return `name`_w [in, out] and `name`_b [out]."""
    return {f"{name}_w": layer.weight.T, f"{name}_b": layer.bias}


def norm(name: str, layer: nn.LayerNorm | nn.BatchNorm2d) -> Weights:
    """Return `name`_gain and `name`_bias, one value per channel each."""
    return {f"{name}_gain": layer.weight, f"{name}_bias": layer.bias}


def ohwi(weight: Tensor) -> Tensor:
    """Turn a weight [out, in, KH, KW] into [out, KH, KW, in]."""
    return weight.permute(0, 2, 3, 1)


class Mlp(Network):
    """64-128-64-10 with ReLU between the layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(64, 128), nn.Linear(128, 64), nn.Linear(64, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels f32[batch, 8, 8] to logits f32[batch, 10]."""
        hidden = F.relu(self.fc1(pixels.flatten(1)))
        return self.fc3(F.relu(self.fc2(hidden)))

    def export(self) -> Weights:
        """Return w1 [64, 128], b1, w2 [128, 64], b2, w3 [64, 10], b3."""
        layers = [self.fc1, self.fc2, self.fc3]
        weights = {f"w{i}": layer.weight.T for i, layer in enumerate(layers, start=1)}
        biases = {f"b{i}": layer.bias for i, layer in enumerate(layers, start=1)}
        return weights | biases


class ConvNorm(nn.Module):
    """A 3x3 convolution that keeps height and width, then batch norm; no activation."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[batch, channels_in, H, W] to f32[batch, channels_out, H, W]."""
        return self.norm(self.conv(x))

    def export_folded(self, name: str) -> Weights:
        """Return `name`_w [out, 3, 3, in] and `name`_b [out] with the batch norm folded in."""
        scale = self.norm.weight / torch.sqrt(self.norm.running_var + EPS)
        return {
            f"{name}_w": ohwi(self.conv.weight) * scale[:, None, None, None],
            f"{name}_b": self.norm.bias - self.norm.running_mean * scale,
        }


class Cnn(Network):
    """Four convolutions: a residual block at 8x8, a max pool, and one convolution at 4x4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = ConvNorm(1, 32), ConvNorm(32, 32)
        self.conv3, self.conv4 = ConvNorm(32, 32), ConvNorm(32, 64)
        self.fc = nn.Linear(64, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels f32[batch, 8, 8] to logits f32[batch, 10]."""
        stem = F.relu(self.conv1(pixels.unsqueeze(1)))
        block = F.relu(self.conv3(F.relu(self.conv2(stem))) + stem)
        top = F.relu(self.conv4(F.max_pool2d(block, 2)))
        return self.fc(top.mean(dim=(2, 3)))

    def export(self) -> Weights:
        """Return conv1..3 with folded norms, conv4 and its norm apart (for NORM.batch), and fc."""
        top = self.conv4
        return {
            **self.conv1.export_folded("conv1"),
            **self.conv2.export_folded("conv2"),
            **self.conv3.export_folded("conv3"),
            "conv4_w": ohwi(top.conv.weight),
            **norm("bn4", top.norm),
            "bn4_mean": top.norm.running_mean,
            "bn4_var": top.norm.running_var,
            **linear("fc", self.fc),
        }


class Layer(nn.Module):
    """A pre-norm transformer layer: 4 heads of 16 without a mask, then a GELU MLP."""

    HEADS = 4

    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(64, eps=EPS), nn.LayerNorm(64, eps=EPS)
        self.qkv, self.proj = nn.Linear(64, 192), nn.Linear(64, 64)
        self.fc1, self.fc2 = nn.Linear(64, 128), nn.Linear(128, 64)

    def attend(self, x: Tensor) -> Tensor:
        """Attend from every token of f32[batch, tokens, 64] to every token; same shape out.

        The columns of qkv are q, k, v; within each, head h owns columns 16h..16h+15.
        """
        query, key, value = (
            part.unflatten(-1, (self.HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        heads = scores.softmax(dim=-1) @ value
        return self.proj(heads.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map f32[batch, tokens, 64] to the same shape."""
        x = x + self.attend(self.ln1(x))
        return x + self.fc2(F.gelu(self.fc1(self.ln2(x))))

    def export(self, name: str) -> Weights:
        """Return this layer's weights, each key prefixed with `name`_."""
        return {
            **norm(f"{name}_ln1", self.ln1),
            **linear(f"{name}_qkv", self.qkv),
            **linear(f"{name}_proj", self.proj),
            **norm(f"{name}_ln2", self.ln2),
            **linear(f"{name}_fc1", self.fc1),
            **linear(f"{name}_fc2", self.fc2),
        }


class Transformer(Network):
    """Two layers over 16 tokens; a token is a patch of 2x2 pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 64)
        self.positions = nn.Parameter(torch.randn(16, 64) * 0.1)
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm = nn.LayerNorm(64, eps=EPS)
        self.head = nn.Linear(64, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels f32[batch, 8, 8] to logits f32[batch, 10].

        Tokens are ordered by rows of patches, the four pixels of a token by rows of pixels.
        """
        rows = pixels.unflatten(2, (4, 2)).unflatten(1, (4, 2))  # [batch, 4, 2, 4, 2]
        patches = rows.transpose(2, 3).reshape(-1, 16, 4)
        x = self.embed(patches) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(dim=1))

    def export(self) -> Weights:
        """Return embed, pos, l0_*, l1_*, ln and head."""
        weights = {**linear("embed", self.embed), "pos": self.positions}
        for index, layer in enumerate(self.layers):
            weights |= layer.export(f"l{index}")
        return weights | norm("ln", self.norm) | linear("head", self.head)


class Lstm(Network):
    """An LSTM of 64 units that reads an image row by row; its last state decides."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        """Map pixels f32[batch, 8, 8] to logits f32[batch, 10]."""
        _, (h, _) = self.rnn(pixels)
        return self.head(h[0])

    def export(self) -> Weights:
        """Return PyTorch's own names and shapes: only a model built in Python reads these."""
        return self.state_dict()


def train(model: Network, images: Tensor, labels: Tensor, epochs: int, rate: float) -> None:
    """Fit the model to images u8[n, 8, 8] and labels i32[n] for a fixed number of epochs.

    AdamW under a one-cycle schedule that peaks at `rate`, fresh augmentation in every batch.
    """
    pixels, targets = normalise(images), labels.long()
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.02)
    steps = epochs * math.ceil(len(pixels) / BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(pixels)).split(BATCH):
            logits = model(augment(pixels[batch]))
            loss = F.cross_entropy(logits, targets[batch], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: Network, images: Tensor, labels: Tensor) -> float:
    """Return the share, 0..1, of images u8[n, 8, 8] that get their label i32[n]."""
    return (model(normalise(images)).argmax(dim=1) == labels).float().mean().item()


def save(path: Path, tensors: Weights) -> None:
    """Write the tensors, contiguous and detached, to a safetensors file."""
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, path)


# name of the weights file -> network, epochs, peak learning rate
RECIPES: dict[str, tuple[type[Network], int, float]] = {
    "digits_mlp": (Mlp, 300, 4e-3),
    "digits_cnn": (Cnn, 60, 4e-3),
    "digits_transformer": (Transformer, 400, 2e-3),
    "digits_lstm": (Lstm, 200, 8e-3),
}


@click.command(help="Train the four digit classifiers and write their weights and data.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(__file__).parent,
    help="Folder to write to; default: the folder of this script.",
)
def main(out: Path) -> None:
    """Write the data file, then train, save and score each model in turn."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    (out / "data").mkdir(parents=True, exist_ok=True)
    data = load_split()
    save(out / "data" / "digits.safetensors", data)
    for name, (network, epochs, rate) in RECIPES.items():
        torch.manual_seed(SEED)
        model = network()
        train(model, data["train_images"], data["train_labels"], epochs, rate)
        save(out / f"{name}.safetensors", model.export())
        score = accuracy(model, data["test_images"], data["test_labels"])
        click.echo(f"{name}: {score:.2%} of {TEST_IMAGES} held-out images")


if __name__ == "__main__":
    main()
