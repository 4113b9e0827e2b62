"""Data sets: readers of the published layouts, partitions over clients, and the manifest of every split."""

from fedleak.data.dataset import Dataset, Images
from fedleak.data.files import Request, data_root
from fedleak.data.load import FederatedData, load, read, read_public, split, split_manifest
from fedleak.data.manifest import SplitManifest
from fedleak.data.public import PublicSpec
from fedleak.data.registry import DATASETS, Source, read_dataset
from fedleak.data.spec import DataSpec, Partition

__all__ = [
    "DATASETS",
    "DataSpec",
    "Dataset",
    "FederatedData",
    "Images",
    "Partition",
    "PublicSpec",
    "Request",
    "Source",
    "SplitManifest",
    "data_root",
    "load",
    "read",
    "read_dataset",
    "read_public",
    "split",
    "split_manifest",
]
