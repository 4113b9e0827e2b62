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
    "tbi": {"steps": 1, "restarts": 1, "width": 0.01, "lr": 1e-3},
    "ptbi": {"steps": 1, "restarts": 1, "width": 0.01, "lr": 1e-3},
    "pli": {"steps": 1, "restarts": 1, "width": 0.01, "lr": 1e-3, "prior": "mean"},
    "fedavg_simulation": {"steps": 3, "restarts": 1, "dummies": 50},
    "sme": {"steps": 3, "restarts": 1, "dummies": 50},
    "label_counts": {"dummies": 50},
    "msa": {"network": {"name": "mlp", "hidden": 4}, "steps": 3, "restarts": 1, "batch_size": 4},
    "adamsa": {"network": {"name": "mlp", "hidden": 4}, "steps": 3, "restarts": 1, "batch_size": 4},
}

DEFENSES: dict[str, dict[str, Any]] = {
    "identity": {},
    "gaussian": {"sigma": 0.1},
    "laplace": {"scale": 0.1},
    "clip": {"norm": 0.5},
    "sparsify": {"fraction": 0.5},
    "prune": {"fraction": 0.5},
    "dp_sgd": {"noise_multiplier": 1.0, "max_grad_norm": 0.5},
    "round": {"decimals": 1},
    "top_k": {"k": 2},
    "temperature": {"t": 2.0},
    "label_only": {},
    "directed": {"gamma": 0.01},
    "one_shot": {},
    "cross_domain": {},
}

DISCLOSE = ["samples", "batch_size", "epochs", "lr", "momentum", "unique_labels"]

PROTOCOLS: dict[str, dict[str, Any]] = {
    "fedsgd": {"rounds": 2, "examples": 1, "disclose": DISCLOSE},
    "fedavg": {"rounds": 2, "epochs": 2, "batch_size": 3, "examples": 1, "disclose": DISCLOSE},
    "fedmd": {"rounds": 2, "transfer_epochs": 1, "first_epochs": 1, "batch_size": 3, "public_batch_size": 4},
    "fedgems": {"rounds": 2, "batch_size": 3, "public_batch_size": 4},
    "dsfl": {"rounds": 2, "batch_size": 3, "public_batch_size": 4},
}

MODELS: dict[str, dict[str, Any]] = {
    "lenet": {"channels": 3},
    "mlp": {"hidden": 5},
    "cnn": {"widths": [2, 3], "hidden": 4},
    "cnn_femnist": {"widths": [2, 3], "hidden": 4, "init": "torch"},
    "cnn_cifar100": {"widths": [2, 3], "hidden": 4, "init": "torch"},
    "pli_cnn": {"channels": 3},
    "adamsa_cnn": {"widths": [2, 3]},
    "alexnet": {"channels": 2, "hidden": 4},
}

METRICS = (
    "mse",
    "psnr",
    "ssim",
    "lpips",
    "recovered",
    "label_errors",
    "attack_accuracy",
    "nearest_public",
    "fidelity",
    "victim_accuracy",
    "utility",
)

DATASETS = (
    "orl",
    "digits",
    "mnist",
    "emnist",
    "cifar10",
    "cifar100",
    "svhn",
    "tiny_imagenet",
    "lfw",
    "lag",
    "facescrub",
    "femnist",
    "imagefolder",
    "npz",
)
