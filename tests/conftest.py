"""What all tests share: one torch thread, reproducible examples, and the real data where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports Triton: without a GPU kernels are interpreted
# The same examples every time: a test that fails here fails for everybody.
settings.register_profile("fedleak", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("fedleak")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; skips where there is none."""
    folder = os.environ.get("FEDLEAK_DATA")
    if not folder or not (Path(folder) / "mnist.npz").is_file():
        pytest.skip("the real data sets are not here: set FEDLEAK_DATA to a folder with mnist.npz")
    return Path(folder)
