"""From a transcript of predictions to a picture for every target label: what tbi, ptbi and pli have in common.

Every round, in the order of pli.txt's algorithm 1: read what was uploaded, train the inversion networks on it, feed
them the optimal inputs. Networks of clients that took part in the same rounds train together, as one stack.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedleak.attacks.knowledge import require
from fedleak.attacks.logits.inputs import optimal_inputs
from fedleak.attacks.logits.material import inputs_of, make_material
from fedleak.attacks.logits.network import InversionNetwork
from fedleak.attacks.logits.observed import Observed, Scene, read_round, read_scene
from fedleak.attacks.logits.priors import mean_prior
from fedleak.attacks.logits.recipe import Recipe
from fedleak.attacks.logits.selection import RULES, pick
from fedleak.attacks.logits.server import OwnServer
from fedleak.attacks.logits.training import InversionStack, Objective
from fedleak.learning.batches import epoch_batches
from fedleak.types import Attack, ClassReconstruction, Progress, RecoveredClasses, Trace, Transcript

__all__ = ["FEDERATION", "invert"]

FEDERATION = "federation"
TARGETS_AT_ONCE = 64
"""Labels in a batch of eq. 10."""
KEPT_BYTES = 8 * 2**30
"""Predictions of all rounds that are kept in memory: those of LFW with 1000 people and 10 clients are 3 GiB."""


def invert(
    attack: Attack, seen: Transcript, recipe: Recipe, *, rng: torch.Generator, progress: Progress
) -> ClassReconstruction:
    """Attack all rounds up to the recipe's. Raises RefusedError, with the reason, where that cannot be done."""
    require(attack, seen)
    # Asked for by its place: a round of a large federation takes seconds to read.
    places = range(seen.place(recipe.round) + 1)
    return _Run(seen, recipe, read_scene(seen.setup), places, rng, progress).result()


class _Run:
    """One attack under way."""

    def __init__(
        self,
        seen: Transcript,
        recipe: Recipe,
        scene: Scene,
        places: Sequence[int],
        rng: torch.Generator,
        progress: Progress,
    ) -> None:
        self.seen, self.recipe, self.scene, self.places, self.progress = seen, recipe, scene, places, progress
        # Drawn first and in this order: a prior is found again by its seed whatever else of the attack is changed.
        prior_seed, server_seed, self.order_seed, self.network_seed = (_seed(rng) for _ in range(4))
        took_part: dict[str, list[int]] = {}
        self._read: dict[int, Observed] = {}
        self._indices: dict[int, int] = {}
        self.servers: dict[int, Any] = {}
        on_gpu = scene.pictures.device.type == "cuda"
        self.notes: dict[str, Any] = {"networks": "stacked", "precision": recipe.precision if on_gpu else "float32"}
        own: OwnServer | None = None
        for at in places:
            round_ = self.observed(at)
            for sender in round_.clients:
                took_part.setdefault(sender, []).append(at)
            if round_.server is None and recipe.feed in ("paired", "server"):
                own = own or OwnServer(seen.setup, scene, server_seed)
                self.servers[at] = own.after(round_)
                self.notes["server"] = "f_0 trained by the attack: the recording has no predictions of the server"
        # Clients, not networks: TBI's only one learns from all of them.
        self.learnt_from = {"last": 1, "server": 0}.get(recipe.feed, len(took_part))
        self.took_part = took_part if recipe.feed in ("paired", "client") else {FEDERATION: list(places)}
        self.prior = mean_prior(scene)
        if recipe.gamma > 0:
            self.prior = recipe.prior.make(scene, prior_seed, self.notes, lambda: progress(0, self._total()))
        self.losses: dict[int, list[Tensor]] = {}
        self.shown: dict[int, dict[str, Tensor]] = {at: {} for at in places}
        self.diverged: list[str] = []
        self.done = 0

    def observed(self, at: int) -> Observed:
        """A round; kept where all rounds together are small enough, for every look at one reads it from disk."""
        round_ = self._read.get(at)
        if round_ is None:
            round_ = read_round(self.seen.rounds[at], self.scene, renormalise=self.recipe.renormalise)
            self._indices[at] = round_.number
            if round_.bytes * len(self.places) <= KEPT_BYTES:
                self._read[at] = round_
        return replace(round_, server=self.servers[at]) if at in self.servers else round_

    def result(self) -> ClassReconstruction:
        for group in self._groups():
            self._train(group, self.took_part[group[0]])
        by_round, latest = [], dict[str, Tensor]()
        for at in self.places:
            latest = {**latest, **self.shown[at]}
            senders = sorted(latest, key=list(self.took_part).index)
            candidates = torch.stack([latest[sender] for sender in senders])
            taken = pick(candidates, self.recipe.beta, self.recipe.choice)
            by_round.append(candidates[taken, torch.arange(len(taken), device=taken.device)])
        of_clients = self.recipe.feed in ("paired", "client")
        by_rule: dict[str, tuple[str, ...]] = {
            rule: tuple(senders[k] for k in pick(candidates, self.recipe.beta, rule).tolist()) for rule in RULES
        }
        curve = [torch.cat(values).mean() for _, values in sorted(self.losses.items())]
        objective = torch.stack(curve).detach().cpu().reshape(1, -1)
        prior = self.prior.of(self.scene.targets).permute(0, 3, 1, 2)
        victim = RecoveredClasses(
            sender=FEDERATION,
            round=self._indices[self.places[-1]],
            labels=self.scene.targets,
            inputs=by_round[-1],
            senders=tuple(senders) if of_clients else (),
            candidates=candidates if of_clients else None,
            chosen=by_rule[self.recipe.choice] if of_clients else (),
            by_rule=by_rule if of_clients else {},
            prior=(prior + 1) / 2,
            by_round=tuple(by_round),
            objective=float(objective[0, -1]),
            status="diverged" if self.diverged else "ok",
            reason="; ".join(self.diverged),
        )
        notes = {**self.notes, "rounds": len(self.places), "clients": self.learnt_from}
        return ClassReconstruction((victim,), self._trace(objective, by_round), notes)

    def _trace(self, objective: Tensor, by_round: Sequence[Tensor]) -> Trace:
        """The loss of every epoch, and the pictures at the end of the last rounds where they are asked for."""
        kept = range(len(by_round))[len(by_round) - min(self.recipe.snapshots, len(by_round)) :]
        pictures = (torch.stack([by_round[at] for at in kept]),) if kept else ()
        ends = tuple((at + 1) * self.recipe.epochs for at in kept)
        return Trace(tuple(sorted(self.losses)), objective, ends, pictures)

    # --- training -------------------------------------------------------------------------------------------------

    def _groups(self) -> list[list[str]]:
        """Clients that took part in the same rounds."""
        groups: dict[tuple[int, ...], list[str]] = {}
        for sender, rounds in self.took_part.items():
            groups.setdefault(tuple(rounds), []).append(sender)
        return list(groups.values())

    def _train(self, group: Sequence[str], rounds: Sequence[int]) -> None:
        """All rounds of a group of networks; half of them at a time where they do not fit into memory."""
        try:
            self._train_at_once(group, rounds)
            return
        except torch.OutOfMemoryError:
            if len(group) == 1:
                raise
        torch.cuda.empty_cache()
        half = (len(group) + 1) // 2
        self.notes["networks"] = f"stacks of at most {half}: more do not fit into memory"
        for part in (group[:half], group[half:]):
            self._train(part, rounds)

    def _train_at_once(self, group: Sequence[str], rounds: Sequence[int]) -> None:
        recipe, scene = self.recipe, self.scene
        network = InversionNetwork(inputs_of(recipe.feed, scene.classes), scene.picture, recipe.width)
        places = list(self.took_part)
        seeds = [
            self.network_seed + 2 * (places.index(s) + len(places) * k)
            for k in range(recipe.restarts + 1)
            for s in group
        ]
        stack = InversionStack(
            network,
            seeds,
            lr=recipe.lr,
            weight_decay=recipe.weight_decay,
            device=scene.pictures.device,
            precision=recipe.precision,
        )
        losses: dict[int, list[Tensor]] = {}
        shown: dict[int, dict[str, Tensor]] = {}
        for at in rounds:
            self._epochs(stack, group, at, losses)
            pictures = self._pictures(stack, losses[self._step(at, recipe.epochs - 1)][-1], len(group))
            shown[at] = dict(zip(group, pictures, strict=True))
        for step, values in losses.items():
            self.losses.setdefault(step, []).extend(values)
        self._keep_finite(shown)
        if stack.trouble:
            self.notes["cuda_graph"] = stack.trouble

    def _epochs(self, stack: InversionStack, group: Sequence[str], at: int, losses: dict[int, list[Tensor]]) -> None:
        recipe, scene = self.recipe, self.scene
        learnt = recipe.norm_after_first == "train" or at == self.places[0]
        objective = Objective(recipe.distance, recipe.gamma, train=learnt)
        material = make_material(
            recipe.feed,
            self.observed(at),
            scene,
            group,
            recipe.tau,
            copies=recipe.restarts + 1,
            prior=self.prior if recipe.gamma > 0 else None,
        )
        for epoch in range(recipe.epochs):
            step = self._step(at, epoch)
            order = torch.Generator().manual_seed(self.order_seed + step)
            batches = torch.cat(epoch_batches(len(material), None, order)).to(scene.pictures.device)
            losses.setdefault(step, []).append(stack.fit(material, torch.split(batches, recipe.batch_size), objective))
            if recipe.gamma > 0:
                last = replace(objective, prior_only=True)
                for labels in torch.split(scene.targets, TARGETS_AT_ONCE):
                    stack.fit_to_priors(self._asked(labels), self.prior.of(labels), last)
            self.done += 1
            self.progress(min(self.done, self._total()), self._total())

    def _pictures(self, stack: InversionStack, losses: Tensor, clients: int) -> Tensor:
        """(clients, n, C, H, W); of several starts the one with the smallest loss."""
        made = torch.cat(
            [stack.show(self._asked(part)) for part in torch.split(self.scene.targets, TARGETS_AT_ONCE)], dim=1
        )
        if len(stack) == clients:
            return made
        best = losses.nan_to_num(nan=torch.inf).reshape(-1, clients).argmin(dim=0)
        return made.reshape(-1, clients, *made.shape[1:])[best, torch.arange(clients, device=best.device)]

    def _asked(self, labels: Tensor) -> Tensor:
        return optimal_inputs(self.recipe.q, labels, self.scene.classes, self.recipe.alpha, self.recipe.rows)

    def _keep_finite(self, shown: Mapping[int, Mapping[str, Tensor]]) -> None:
        """A network that diverged keeps the pictures of the last round in which they were finite."""
        good: dict[str, Tensor] = {}
        for at, pictures in shown.items():
            for sender, made in pictures.items():
                if bool(torch.isfinite(made).all()):
                    good[sender] = made
                else:
                    self.diverged.append(f"{sender}: the inversion network diverged in round {self._indices[at]}")
                self.shown[at][sender] = good.get(sender, made)

    def _step(self, at: int, epoch: int) -> int:
        """Epochs are counted over all rounds, from 1."""
        return self.places.index(at) * self.recipe.epochs + epoch + 1

    def _total(self) -> int:
        groups = {tuple(rounds) for rounds in self.took_part.values()}
        return self.recipe.epochs * sum(map(len, groups))


def _seed(rng: torch.Generator) -> int:
    return int(torch.randint(0, 2**62, (1,), generator=rng))
