"""The networks of the logit papers: pli.txt Code 1, and the CNNs and AlexNet of adamsa.txt, table 5.

Max pooling stands before ReLU here: the largest of a window is the same before and after a rising function, and where
it is negative no gradient passes either way. It is the papers' function and gradient in two thirds of the time.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt
from torch import nn

from fedleak.components import component

__all__ = ["PLICNN", "AdaMSACNN", "AlexNet"]


@component
class PLICNN:
    """Server and clients of Breaching FedMD (Code 1): one valid 3x3 convolution, ReLU, max pooling 3, one linear layer.

    At 64x64 the linear layer has 32 x 20 x 20 = 12800 inputs, as printed.
    """

    paper: ClassVar[str] = "Takahashi et al. 2023, Breaching FedMD, Code 1"
    revision: ClassVar[int] = 1
    channels: PositiveInt = Field(default=32, description="width of the convolution")

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        colours, height, width = input_shape
        left = ((height - 2) // 3) * ((width - 2) // 3)
        return nn.Sequential(
            nn.Conv2d(colours, self.channels, 3),
            nn.MaxPool2d(3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(self.channels * left, classes),
        )


@component
class AdaMSACNN:
    """The CNNs of AdaMSA's paper (table 5): for each width a 3x3 convolution, ReLU, max pooling; then one linear layer.

    The paper gives layers and widths only; padding 1 and pooling 2 are our choice. The widths are those of FedMD's
    published code, which also normalises batches after every convolution and drops a share of its outputs (`norm`,
    `dropout`), and pools by means with other strides. Without `norm` a wide network dies at the paper's learning rate
    of 0.01 (papers/adamsa/RESULTS.md).
    """

    paper: ClassVar[str] = (
        "Quantifying and Defending against the Privacy Risk in Logit-based Federated Learning, table 5"
    )
    revision: ClassVar[int] = 1
    widths: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=4)] = Field(
        default=(128, 256), description="channels of each convolution"
    )
    norm: Literal["none", "batch"] = Field(default="none", description="batch: BatchNorm after every convolution")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of outputs dropped after every ReLU")

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for wide in self.widths:
            norm = [nn.BatchNorm2d(wide)] if self.norm == "batch" else []
            drop = [nn.Dropout(self.dropout)] if self.dropout else []
            layers += [nn.Conv2d(channels, wide, 3, padding=1), *norm, nn.MaxPool2d(2), nn.ReLU(), *drop]
            channels, height, width = wide, height // 2, width // 2
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * height * width, classes))


@component
class AlexNet:
    """AlexNet for small pictures (28x28, 32x32): five convolutions, three poolings, three linear layers.

    Adapted as is usual at this size: 3x3 convolutions, the first of stride 2, and poolings of 2 that round up, since
    the 11x11 convolution of stride 4 of the original would leave nothing of a 28x28 picture.
    """

    paper: ClassVar[str] = (
        "Krizhevsky et al. 2017; "
        "Quantifying and Defending against the Privacy Risk in Logit-based Federated Learning, table 5"
    )
    revision: ClassVar[int] = 1
    channels: PositiveInt = Field(default=64, description="width of the first convolution; the others scale with it")
    hidden: PositiveInt = Field(default=4096, description="width of the two hidden linear layers")
    dropout: float = Field(default=0.5, ge=0, lt=1, description="share dropped before each hidden linear layer")

    def __call__(self, input_shape: tuple[int, ...], classes: int) -> nn.Module:
        colours, height, width = input_shape
        first = self.channels
        for _ in range(4):  # one stride, three poolings, each rounding up
            height, width = (height + 1) // 2, (width + 1) // 2
        return nn.Sequential(
            nn.Conv2d(colours, first, 3, stride=2, padding=1),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),
            nn.Conv2d(first, 3 * first, 3, padding=1),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),
            nn.Conv2d(3 * first, 6 * first, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(6 * first, 4 * first, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(4 * first, 4 * first, 3, padding=1),
            nn.MaxPool2d(2, ceil_mode=True),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(self.dropout),
            nn.Linear(4 * first * height * width, self.hidden),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(self.hidden, self.hidden),
            nn.ReLU(),
            nn.Linear(self.hidden, classes),
        )
