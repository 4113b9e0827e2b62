"""One row per component: adding one to a registry means adding a row here, and then every contract test runs on it."""

from __future__ import annotations

from typing import Any

# Small settings under which an attack finishes within seconds on the tiny problem of test_attacks_contract.py.
ATTACKS: dict[str, dict[str, Any]] = {
    "dlg": {"steps": 3, "restarts": 1},
    "idlg": {"steps": 3, "restarts": 1},
    "cosine": {"steps": 3, "restarts": 1},
    "dlm": {"steps": 3, "restarts": 1},
    "dlm_plus": {"steps": 3, "restarts": 1},
    "class_inversion": {"steps": 5, "restarts": 1},
}

DEFENSES: dict[str, dict[str, Any]] = {
    "identity": {},
    "gaussian": {"sigma": 0.1},
    "laplace": {"scale": 0.1},
    "clip": {"norm": 0.5},
    "sparsify": {"fraction": 0.5},
    "dp_sgd": {"noise_multiplier": 1.0, "max_grad_norm": 0.5},
}

DISCLOSE = ["samples", "batch_size", "epochs", "lr", "momentum", "unique_labels"]

PROTOCOLS: dict[str, dict[str, Any]] = {
    "fedsgd": {"rounds": 2, "examples": 1, "disclose": DISCLOSE},
    "fedavg": {"rounds": 2, "epochs": 2, "batch_size": 3, "examples": 1, "disclose": DISCLOSE},
}

MODELS: dict[str, dict[str, Any]] = {
    "lenet": {"channels": 3},
    "mlp": {"hidden": 5},
    "cnn": {"widths": [2, 3], "hidden": 4},
}

METRICS = ("mse", "psnr", "ssim", "lpips", "recovered", "label_errors", "attack_accuracy", "utility")

DATASETS = ("orl", "digits", "mnist", "emnist", "cifar10", "cifar100", "imagefolder", "npz")
