"""What all tests share: one torch thread, reproducible examples, and the real data where it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anybody imports Triton: without a GPU kernels are interpreted
# The same examples every time: a test that fails here fails for everybody. Hypothesis also looks at the clock, and
# fails a test whose examples took long to draw: on a busy machine any of them may.
settings.register_profile(
    "fedleak", derandomize=True, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fedleak")


@pytest.fixture(autouse=True)
def same_dice() -> None:
    """What a test draws without a generator of its own does not depend on which tests ran before it in the process."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; skips where there is none."""
    folder = os.environ.get("FEDLEAK_DATA")
    if not folder or not (Path(folder) / "mnist.npz").is_file():
        pytest.skip("the real data sets are not here: set FEDLEAK_DATA to a folder with mnist.npz")
    return Path(folder)
