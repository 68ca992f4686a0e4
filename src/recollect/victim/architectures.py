"""Convolutional networks as torch modules.

An audit of image models meets such networks; those of the paper are fully connected.

Give one to `Victim` with its weights, or name it on the command line:
`--model recollect.victim.architectures:convolutional --input-shape 3,32,32`.
"""

from __future__ import annotations

import torch
from torch import nn

from recollect.shapes import Tensor


def convolutional(channels: int = 3, size: int = 32, width: int = 32, c: int = 10) -> nn.Sequential:
    """Two convolutions, each of which halves the image size, and a linear head on their output."""
    side = (size + 3) // 4
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * side * side, c),
    )


class Block(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        moved: Tensor = self.inner(x)
        return x + moved


def residual(
    channels: int = 3, size: int = 28, width: int = 32, c: int = 10, blocks: int = 4
) -> nn.Sequential:
    """A stem from 28×28 to 7×7 maps, four residual blocks and a linear head, without normalisation.

    After the residual network of "A Law of Data Reconstruction for Random Features (and Beyond)".
    """
    side = size // 4
    return nn.Sequential(
        nn.Conv2d(channels, width, 4, stride=4),
        *(Block(width) for _ in range(blocks)),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(width * side * side, c),
    )


class Head(nn.Module):
    """A linear head on a frozen feature extractor. Only the head is trained."""

    def __init__(self, extractor: nn.Module, features: int, c: int, *, bias: bool = True) -> None:
        super().__init__()
        self.extractor = extractor.requires_grad_(False)
        self.head = nn.Linear(features, c, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(torch.flatten(self.extractor(x), 1))
        return outputs
