"""What an attack found as files, for people who want to look before they read: pictures, and copies of models."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.torch import save as save_tensors
from torch import Tensor

from fedleak.files import replace_file
from fedleak.types import Finding, RecoveredClasses, RecoveredImages, StolenModel

__all__ = ["png", "write_models", "write_pictures"]


def png(image: Tensor, scale: int = 1) -> bytes:
    """One image (C, H, W) of pixels in [0, 1], clipped, as PNG; grey stays grey, extra channels are left out."""
    channels = image.detach().cpu().nan_to_num(0.5).clamp(0, 1)[: 3 if image.shape[0] >= 3 else 1]
    values = np.rint(channels.numpy() * 255).astype(np.uint8)
    picture = Image.fromarray(values[0] if len(values) == 1 else values.transpose(1, 2, 0))
    if scale > 1:
        picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=False)
    return buffer.getvalue()


def write_pictures(finding: Finding, folder: Path) -> Path:
    """One PNG per reconstructed image: round-1-client-0-0.png, of a class round-1-client-0-label-7.png. A sender's name
    becomes letters, digits and dashes."""
    for victim in finding.victims:
        if not isinstance(victim, RecoveredImages | RecoveredClasses):
            continue
        safe = _safe(victim.sender)
        classes = victim.labels.tolist() if isinstance(victim, RecoveredClasses) else []
        for number, image in enumerate(victim.inputs):
            last = f"label-{classes[number]}" if classes else str(number)
            replace_file(folder / f"round-{victim.round}-{safe}-{last}.png", png(image, scale=4))
    return folder


def write_models(finding: Finding, folder: Path) -> Path:
    """One safetensors file per stolen model: round-2-client-0.safetensors."""
    for victim in finding.victims:
        if isinstance(victim, StolenModel) and victim.weights.tensors:
            held = {**victim.weights.tensors, **victim.weights.buffers}
            plain = {name: value.detach().cpu().contiguous().clone() for name, value in held.items()}
            replace_file(folder / f"round-{victim.round}-{_safe(victim.sender)}.safetensors", save_tensors(plain))
    return folder


def _safe(sender: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", sender)[:80] or "client"
