"""Private people among public ones: D_0, D_a, the private sets, their twins, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedleak.components import configure
from fedleak.data import DataSpec, FederatedData, load, split_manifest
from fedleak.data.domains import blurred
from fedleak.errors import RefusedError
from fedleak.seeding import Seeds

PEOPLE = 12


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """faces.npz: 12 people with 2, 3, 4, 5, 2, ... photos; every photo is one grey level, its index."""
    labels = np.repeat(np.arange(PEOPLE), [2 + person % 4 for person in range(PEOPLE)])
    x = np.zeros((len(labels), 16, 16), dtype=np.uint8)
    x[:] = np.arange(len(labels))[:, None, None]
    np.savez(tmp_path / "faces.npz", x=x, y=labels)
    np.savez(tmp_path / "single.npz", x=x[:6], y=np.array([0, 1, 1, 2, 2, 3]))
    return tmp_path


def loaded(
    root: Path, seed: int = 0, path: str = "faces.npz", public: dict[str, Any] | None = None, **given: Any
) -> FederatedData:
    table = {"name": "npz", "path": path, "clients": 2, "test_fraction": 0, **given}
    return load(configure(DataSpec, {**table, "public": {"targets": 5, **(public or {})}}), root, Seeds(seed))


def labels_in(root: Path) -> torch.Tensor:
    return torch.from_numpy(np.load(root / "faces.npz")["y"])


def levels(inputs: torch.Tensor) -> list[int]:
    """Which photos these are: a mask never reaches the upper left corner, and a blur leaves a flat photo as it is."""
    return (inputs[:, 0, 0, 0] * 255).round().long().tolist()


def parts(data: FederatedData) -> tuple[list[int], list[int], list[int]]:
    """(D_0, D_a, private) as photo numbers."""
    assert data.public is not None
    assert data.public.domains is not None
    numbers = torch.tensor(levels(data.public.inputs))
    held = [number for examples in data.clients.values() for number in levels(examples.inputs)]
    return numbers[data.public.domains == 0].tolist(), numbers[data.public.domains == 1].tolist(), sorted(held)


def of(root: Path, data: FederatedData) -> tuple[set[int], set[int]]:
    """(photos of targets, photos of everybody else)."""
    labels = labels_in(root)
    mine = torch.isin(labels, torch.tensor(data.targets))
    return set(torch.nonzero(mine).flatten().tolist()), set(torch.nonzero(~mine).flatten().tolist())


def test_with_twins_everybody_is_masked_and_targets_are_private(root: Path) -> None:
    data = loaded(root)
    plain, other, held = parts(data)
    mine, rest = of(root, data)
    assert (set(plain), set(other), set(held)) == (rest, mine | rest, mine)
    assert data.twins == len(mine)
    assert len(data.targets) == 5
    assert (data.classes, len(data.test)) == (PEOPLE, 0)
    assert data.public is not None
    assert data.public.labels is not None
    assert torch.equal(data.public.labels, labels_in(root)[plain + other])


def test_every_photo_of_a_target_sits_at_one_client_and_the_label_sets_are_near_equal(root: Path) -> None:
    data = loaded(root, clients=3)
    sets = [set(examples.labels.tolist()) for examples in data.clients.values()]
    assert sorted(map(len, sets)) == [1, 2, 2]
    assert set.union(*sets) == set(data.targets)
    labels = labels_in(root)
    for examples in data.clients.values():
        assert labels[levels(examples.inputs)].tolist() == examples.labels.tolist()


def test_without_twins_the_masked_photos_of_targets_are_others(root: Path) -> None:
    data = loaded(root, public={"drop_twins": True})
    plain, other, held = parts(data)
    mine, rest = of(root, data)
    assert data.twins == 0
    assert set(plain) == rest
    assert not set(other) & set(held)
    assert set(other) | set(held) == mine | rest
    for target in data.targets:
        photos = set(torch.nonzero(labels_in(root) == target).flatten().tolist())
        # half of them, halves up; at least one on either side
        assert len(photos & set(other)) == min(int(0.5 * len(photos) + 0.5), len(photos) - 1)
        assert photos & set(held)


def test_the_share_of_a_target_that_is_public(root: Path) -> None:
    few, many = (loaded(root, public={"drop_twins": True, "public_share": share}) for share in (0.01, 0.99))
    assert few.targets == many.targets
    for data, private in ((few, False), (many, True)):
        _, other, held = parts(data)
        for target in data.targets:
            photos = set(torch.nonzero(labels_in(root) == target).flatten().tolist())
            assert len(photos & set(held if private else other)) == 1


def test_held_out_photos_are_neither_private_nor_public_without_twins(root: Path) -> None:
    data = loaded(root, test_fraction=0.4, public={"drop_twins": True})
    plain, other, held = parts(data)
    tested = set(levels(data.test.inputs))
    mine, _ = of(root, data)
    assert tested
    assert tested <= mine - set(held) - set(other) - set(plain)
    assert {target for examples in data.clients.values() for target in examples.labels.tolist()} == set(data.targets)
    assert data.manifest.test_from == "held_out"


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_blur_shares_out_the_photos_of_targets(root: Path, variant: str) -> None:
    data = loaded(root, public={"domain": "blur", "blur": 5, "variant": variant})
    plain, other, held = parts(data)
    mine, rest = of(root, data)
    assert data.twins == 0
    assert (set(other) & mine) | set(held) == mine
    assert not set(other) & set(held)
    assert not set(other) & set(plain)
    assert set(plain) | (set(other) & rest) == rest
    assert (set(plain) == rest) == (variant == "paper")
    if variant == "released":
        labels = labels_in(root)
        blurry, photos = labels[list(set(other) & rest)].bincount(), labels[list(rest)].bincount()
        assert all(0 < b < n for b, n in zip(blurry.tolist(), photos.tolist(), strict=False) if n)


def test_blurred_photos_are_blurred_at_the_size_the_networks_see(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (6, 24, 24, 3), dtype=np.uint8)
    np.savez(tmp_path / "faces.npz", x=x, y=np.arange(6) // 2)
    data = loaded(tmp_path, clients=1, size=12, grey=True, public={"targets": 1, "domain": "blur", "blur": 4})
    assert data.public is not None
    shown = data.manifest.public
    assert shown is not None
    [at] = shown["parts"][1]["index"]
    small = np.asarray(Image.fromarray(x[at]).convert("L").resize((12, 12), Image.Resampling.BILINEAR))
    expected = blurred(torch.from_numpy(small.copy())[None, None], 4)[0]
    assert torch.equal((data.public.inputs[-1] * 255).round().to(torch.uint8), expected)


def test_lag_s_own_young_faces(tmp_path: Path) -> None:
    for person in range(6):
        for age, count in (("", 2), ("y", 1)):
            folder = tmp_path / "lag" / f"p{person}" / age
            folder.mkdir(parents=True, exist_ok=True)
            for at in range(count):
                Image.new("RGB", (64, 64), (10 * person + at + (5 if age else 0),) * 3).save(folder / f"{at}.png")
    spec = {"name": "lag", "clients": 2, "test_fraction": 0, "public": {"targets": 3, "domain": "own"}}
    data = load(configure(DataSpec, spec), tmp_path, Seeds(0))
    plain, other, held = parts(data)
    assert sorted(other) == [10 * person + 5 for person in range(6)]
    assert sorted(plain + held) == sorted(10 * person + at for person in range(6) for at in range(2))
    assert {number // 10 for number in held} == set(data.targets)
    assert data.twins == 0


def test_without_public_labels_only_the_targets_are_classes(root: Path) -> None:
    """DS-FL: the output size is the number of private labels, counted from 0 in the order of the labels they had."""
    labelled, data = loaded(root), loaded(root, public={"labels": False})
    assert data.public is not None
    assert data.public.labels is None
    assert (data.classes, data.targets) == (5, (0, 1, 2, 3, 4))
    for name, examples in data.clients.items():
        assert [labelled.targets[label] for label in examples.labels.tolist()] == labelled.clients[name].labels.tolist()
        assert torch.equal(examples.inputs, labelled.clients[name].inputs)
    assert data.manifest.public is not None
    assert data.manifest.public["targets"] == list(labelled.targets)
    # The evaluator still knows whom the public images show: the private people first, then the others.
    assert labelled.public_labels is None
    assert data.public_labels is not None
    assert labelled.public is not None
    assert labelled.public.labels is not None
    others = sorted(set(labelled.public.labels.tolist()) - set(labelled.targets))
    numbered = [*labelled.targets, *others]
    assert [numbered[label] for label in data.public_labels.tolist()] == labelled.public.labels.tolist()


def test_only_some_people_and_at_most_some_photos_of_each(root: Path) -> None:
    data = loaded(root, classes=[11, 3, 7, 2], public={"targets": 2}, per_class=1)
    assert data.classes == 4
    assert [len(examples) for examples in data.clients.values()] == [1, 1]
    assert data.twins == 2
    assert data.public is not None
    assert data.public.labels is not None
    assert set(data.public.labels.tolist()) == {0, 1, 2, 3}
    kept = labels_in(root)[levels(data.public.inputs)]
    assert [[11, 3, 7, 2][label] for label in data.public.labels.tolist()] == kept.tolist()


def test_the_seed_draws_targets_and_masks_and_a_photo_keeps_its_mask(root: Path) -> None:
    one, two, other = loaded(root), loaded(root), loaded(root, seed=1)
    assert one.manifest.hash == two.manifest.hash != other.manifest.hash
    assert one.public is not None
    assert two.public is not None
    assert torch.equal(one.public.inputs, two.public.inputs)
    assert one.targets != other.targets
    fewer = loaded(root, public={"targets": 2})
    assert fewer.public is not None
    masked = [data.public.inputs[data.public.domains == 1] for data in (one, fewer) if data.public is not None]
    assert torch.equal(*masked)


def test_nothing_draws_from_the_global_generator(root: Path) -> None:
    before = torch.random.get_rng_state()
    loaded(root, public={"drop_twins": True})
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_manifest_records_the_public_set_and_its_hash_covers_it(root: Path) -> None:
    data = loaded(root)
    written = json.loads(json.dumps(data.manifest.as_json()))
    plain, other, _ = parts(data)
    assert [part["index"] for part in written["public"]["parts"]] == [plain, other]
    assert [part["altered"] for part in written["public"]["parts"]] == [False, True]
    assert written["public"]["twins"] == data.twins
    assert written["public"]["targets"] == list(data.targets)
    assert written["public"]["parts"][0]["digest"] == data.manifest.digest
    assert str(root) not in json.dumps(written)
    hashes = {
        loaded(root, public=public).manifest.hash
        for public in (
            {},
            {"targets": 4},
            {"drop_twins": True},
            {"labels": False},
            {"domain": "blur"},
            {"domain": "blur", "blur": 3},
        )
    }
    assert len(hashes) == 6


def test_the_manifest_can_be_had_without_pixels(root: Path) -> None:
    table = {"name": "npz", "path": "faces.npz", "clients": 2, "public": {"targets": 5}}
    spec = configure(DataSpec, table)
    assert split_manifest(spec, root, Seeds(4)).as_json() == load(spec, root, Seeds(4)).manifest.as_json()


def test_a_target_has_photos_on_either_side(root: Path) -> None:
    """single.npz: two of four people have one photo only; where photos are shared out they cannot be targets."""
    for seed in range(5):
        data = loaded(root, seed=seed, path="single.npz", clients=1, public={"targets": 2, "drop_twins": True})
        assert data.targets == (1, 2)
    with pytest.raises(
        RefusedError, match=r"public\.targets=3: 2 people have an image for the private set and another"
    ):
        loaded(root, path="single.npz", clients=1, public={"targets": 3, "drop_twins": True})
    assert len(loaded(root, path="single.npz", clients=1, public={"targets": 3}).targets) == 3


def test_what_cannot_be_divided_is_refused(root: Path) -> None:
    with pytest.raises(RefusedError, match=r"public\.targets=12: there are 12 people; at least one must be left"):
        loaded(root, public={"targets": 12})
    with pytest.raises(RefusedError, match=r"public\.blur=17: the images are 16x16"):
        loaded(root, public={"domain": "blur", "blur": 17})


@pytest.mark.parametrize("size", [32, 64])
def test_orl_as_the_smoke_tables_take_it(tmp_path: Path, size: int) -> None:
    """facts of logit_leakage: 40 people, 20 targets, D_0 the clean others, D_a masked of all, drop_twins."""
    spec = {"name": "orl", "size": size, "clients": 2, "test_fraction": 0.2}
    data = load(configure(DataSpec, {**spec, "public": {"targets": 20, "drop_twins": True}}), tmp_path, Seeds(0))
    assert data.public is not None
    assert data.public.domains is not None
    assert data.public.labels is not None
    assert data.input_shape == (1, size, size)
    assert data.public.domains.bincount().tolist() == [200, 300]
    assert data.public.labels[data.public.domains == 1].unique().tolist() == list(range(40))
    assert [len(examples) for examples in data.clients.values()] == [40, 40]
    assert (len(data.test), data.twins, data.classes) == (20, 0, 40)
    assert data.public.inputs.min() >= 0
    assert data.public.inputs.max() <= 1
