"""The inversion network of pli.txt, Code 2: a stack of transposed convolutions from predictions to a picture.

The networks of all clients are one function of stacked parameters, with a leading axis of networks. Pictures have their
channels last: then a transposed convolution is one batched matrix product whose columns are laid over each other, and
nothing is transposed in between. A test holds it against torch's own layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["InversionNetwork", "plain_network"]

WIDEST = 1024
KERNEL = 4
MOMENTUM, EPSILON = 0.1, 1e-5
"""torch's BatchNorm2d."""


@dataclass(frozen=True)
class InversionNetwork:
    """Its sizes: `inputs` numbers in, a picture (channels, height, width) in [-1, 1] out.

    64x64 pictures get Code 2 itself: 4x4 positions and 1024, 512, 256, 128 channels, doubled to 64x64. Others have as
    many doublings as fit; sides that are no power of two begin with more positions, and what is over is cut off.
    `width` scales the channels.
    """

    inputs: int
    picture: tuple[int, int, int]
    width: float = 1.0

    @property
    def doublings(self) -> int:
        return max(1, int(math.log2(max(1, min(self.picture[1:]) // KERNEL))))

    @property
    def first(self) -> tuple[int, int]:
        """Positions, down and across, that the first layer makes."""
        times = 2**self.doublings
        return -(-self.picture[1] // times), -(-self.picture[2] // times)

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(max(1, round(self.width * WIDEST / 2**level)) for level in range(self.doublings))

    def parameters(self, seeds: Sequence[int], device: torch.device | str = "cpu") -> dict[str, Tensor]:
        """Initial values as torch's layers have them, one network for every seed, stacked. They are drawn on the CPU,
        straight into this layout: moving 33 million numbers of torch's around takes longer than drawing them."""
        made: dict[str, Tensor] = {}
        drawing = [torch.Generator().manual_seed(seed) for seed in seeds]
        sizes = [self.inputs, *self.widths, self.picture[0]]
        for level, (wide, narrow) in enumerate(itertools.pairwise(sizes)):
            window = self.first[0] * self.first[1] if level == 0 else KERNEL * KERNEL
            # torch takes the fan-in of a transposed convolution from its outputs.
            bound = 1.0 / math.sqrt(narrow * window)
            for name, shape in (("weight", (wide, narrow * window)), ("bias", (1, narrow))):
                stacked = torch.empty(len(seeds), *shape, device=device)
                for at, rng in enumerate(drawing):
                    stacked[at].copy_(torch.empty(shape).uniform_(-bound, bound, generator=rng))
                made[f"up{level}.{name}"] = stacked
        for level, wide in enumerate(self.widths):
            made[f"norm{level}.weight"] = torch.ones(len(seeds), 1, wide, device=device)
            made[f"norm{level}.bias"] = torch.zeros(len(seeds), 1, wide, device=device)
        return made

    def buffers(self, networks: int) -> dict[str, Tensor]:
        """The running means and variances of the normalisations."""
        found: dict[str, Tensor] = {}
        for level, wide in enumerate(self.widths):
            found[f"norm{level}.mean"] = torch.zeros(networks, 1, wide)
            found[f"norm{level}.variance"] = torch.ones(networks, 1, wide)
        return found

    def from_plain(self, module: nn.Sequential) -> dict[str, Tensor]:
        """The parameters of torch's own layers in this layout: (inputs, rows * columns * channels)."""
        found: dict[str, Tensor] = {}
        convolutions = [layer for layer in module if isinstance(layer, nn.ConvTranspose2d)]
        norms = [layer for layer in module if isinstance(layer, nn.BatchNorm2d)]
        for level, layer in enumerate(convolutions):
            assert layer.bias is not None
            weight = layer.weight.detach()
            found[f"up{level}.weight"] = weight.permute(0, 2, 3, 1).reshape(len(weight), -1).contiguous()
            found[f"up{level}.bias"] = layer.bias.detach().reshape(1, -1).clone()
        for level, norm in enumerate(norms):
            found[f"norm{level}.weight"] = norm.weight.detach().reshape(1, -1).clone()
            found[f"norm{level}.bias"] = norm.bias.detach().reshape(1, -1).clone()
        return found

    def __call__(
        self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], inputs: Tensor, *, train: bool
    ) -> Tensor:
        """(networks, n, inputs) to pictures (networks, n, height, width, channels) in [-1, 1].

        With `train` every batch is normalised by itself and `buffers` are moved along in place.
        """
        networks, count = inputs.shape[:2]
        down, across = self.first
        value = torch.bmm(inputs, parameters["up0.weight"]).reshape(networks, count * down * across, -1)
        value = value + parameters["up0.bias"]
        for level in range(self.doublings):
            value = _normalised(value, f"norm{level}", parameters, buffers, train)
            columns = torch.bmm(value, parameters[f"up{level + 1}.weight"])
            spread: Tensor = _Spread.apply(  # type: ignore[no-untyped-call]
                columns.reshape(networks * count, down, across, KERNEL, KERNEL, -1)
            )
            down, across = 2 * down, 2 * across
            value = spread.reshape(networks, count * down * across, -1) + parameters[f"up{level + 1}.bias"]
        pictures = torch.tanh(value).reshape(networks, count, down, across, -1)
        return pictures[:, :, : self.picture[1], : self.picture[2]]


def plain_network(of: InversionNetwork, seed: int) -> nn.Sequential:
    """One such network of torch's own layers, as Code 2 prints it (not cut to size); torch's generator is only lent."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.ConvTranspose2d(of.inputs, of.widths[0], of.first)]
        for wide, narrow in zip(of.widths, (*of.widths[1:], of.picture[0]), strict=True):
            layers += [nn.BatchNorm2d(wide), nn.Tanh()]
            layers += [nn.ConvTranspose2d(wide, narrow, KERNEL, stride=2, padding=1)]
        return nn.Sequential(*layers, nn.Tanh())


def _normalised(
    value: Tensor, name: str, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], train: bool
) -> Tensor:
    """Batch normalisation over the examples and positions of each network, (networks, n, channels), and tanh of it."""
    weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
    if not train:
        scale = weight * torch.rsqrt(buffers[f"{name}.variance"] + EPSILON)
        return torch.tanh((value - buffers[f"{name}.mean"]) * scale + bias)
    variance, mean = torch.var_mean(value.detach(), dim=1, keepdim=True, correction=0)
    count = value.shape[1]
    # torch keeps the unbiased variance for later and uses the biased one now.
    buffers[f"{name}.mean"].lerp_(mean, MOMENTUM)
    buffers[f"{name}.variance"].lerp_(variance * (count / max(count - 1, 1)), MOMENTUM)
    made: Tensor = _NormTanh.apply(value, weight, bias, mean, torch.rsqrt(variance + EPSILON))  # type: ignore[no-untyped-call]
    return made


class _NormTanh(torch.autograd.Function):
    """tanh(weight * (value - mean) / deviation + bias), with mean and deviation those of `value` itself.

    The derivative in closed form goes over the values seven times, autograd's own thirteen.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse: Tensor) -> Tensor:
        scale = weight * inverse
        made = torch.addcmul(bias - mean * scale, value, scale).tanh_()
        ctx.save_for_backward(value, mean, inverse, scale, made)
        return made

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        value, mean, inverse, scale, made = ctx.saved_tensors
        slope = torch.ops.aten.tanh_backward(slopes[0], made)
        of_bias = slope.sum(dim=1, keepdim=True)
        centred = value - mean
        of_weight = (slope * centred).sum(dim=1, keepdim=True) * inverse
        share = scale / value.shape[1]
        of_value = torch.addcmul(-share * of_bias, centred, -share * inverse * of_weight).addcmul_(slope, scale)
        return of_value, of_weight, of_bias, None, None


class _Spread(torch.autograd.Function):
    """Columns (n, h, w, 4, 4, channels) laid over each other with stride 2 and padding 1: (n, 2h, 2w, channels).

    Row 2m of the result is row m of kernel line 1 and row m - 1 of line 3; row 2m + 1 is row m of line 2 and row m + 1
    of line 0; columns alike. Its derivative takes every 4x4 window of what comes back.
    """

    @staticmethod
    def forward(ctx: Any, columns: Tensor) -> Tensor:
        count, down, across, _, _, channels = columns.shape
        lines = columns[:, :, :, 1:3].contiguous()
        lines[:, 1:, :, 0] += columns[:, :-1, :, 3]
        lines[:, :-1, :, 1] += columns[:, 1:, :, 0]
        result = columns.new_empty(count, down, 2, across, 2, channels)
        view = result.permute(0, 1, 3, 2, 4, 5)
        view.copy_(lines[:, :, :, :, 1:3])
        view[:, :, 1:, :, 0] += lines[:, :, :-1, :, 3]
        view[:, :, :-1, :, 1] += lines[:, :, 1:, :, 0]
        return result.reshape(count, 2 * down, 2 * across, channels)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(slopes[0], (0, 0, 1, 1, 1, 1))
        windows = padded.unfold(1, KERNEL, 2).unfold(2, KERNEL, 2)
        return windows.permute(0, 1, 2, 4, 5, 3).contiguous()
