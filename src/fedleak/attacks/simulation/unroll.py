"""The client's local training run again on dummies, for many clients at once, and the way back to the dummies.

No graph is kept over the unrolled steps. Forward, every step leaves what its own way back needs; backward, an adjoint
goes from step to step: with update = (theta_0 - theta_U) / lr = sum of the gradients g_u, a value F of the update and
a_U = dF/d(update),

    dF/dx_u = d<g_u, a_{u+1}>/dx_u,        a_u = a_{u+1} - lr d<g_u, a_{u+1}>/d(theta_u).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import torch
from torch import Tensor

from fedleak.attacks.simulation.calls import check_call, shares
from fedleak.attacks.simulation.choose_steps import Choice, choose, first_line
from fedleak.attacks.simulation.replay import Direct, Recorded, Runner
from fedleak.attacks.simulation.tiled_steps import TiledSteps
from fedleak.errors import RefusedError
from fedleak.learning.functional import Loss, Network
from fedleak.learning.precision import Precision, products_in
from fedleak.types import Named

__all__ = ["Checkpoint", "Measure", "Precision", "Simulation"]

Checkpoint = Literal["step", "epoch"]

Measure = Callable[[dict[str, Tensor], tuple[Tensor, ...]], tuple[Tensor, dict[str, Tensor]]]
"""(update of some victims, what is given for the same victims) to values (victims,) and d value / d update."""

ROOM = 0.8
"""Share of the free memory of a GPU that is planned for; the rest is for what the estimate does not see."""


class Simulation:
    """Plain SGD of many clients from the same weights, and the way back: dummies to update to slope on the dummies.

    At most `piece` victims are simulated at once (fewer where the memory is estimated not to suffice); where it runs
    out all the same it is halved, and what is done stays done. `checkpoint="epoch"` keeps the weights at the start of
    every epoch and computes an epoch's steps twice: memory then grows with epochs + steps_per_epoch instead of their
    product. `precision="tf32"` lets a GPU round the factors of products to ten bits inside a call.

    Which way the steps are computed is decided at the first call, against autograd on two victims. `engine` names it;
    where the module cannot be mapped over victims they are simulated one by one and `fallback` says why. On a GPU a
    step is recorded as a CUDA graph and replayed; where that is not possible `uncaptured` says why, and where our own
    kernels do not run there `unfused` does.
    """

    def __init__(
        self,
        network: Network,
        loss: Loss,
        weights: Named,
        *,
        lr: float,
        steps_per_epoch: int,
        checkpoint: Checkpoint = "step",
        precision: Precision = "float32",
        piece: int | None = None,
        momentum: float = 0.0,
    ) -> None:
        if momentum:
            raise RefusedError(f"momentum={momentum}: only plain SGD is unrolled; attack clients without momentum")
        if not lr > 0:
            raise RefusedError(f"lr={lr}: must be above 0; nothing moves without a step")
        if steps_per_epoch < 1:
            raise RefusedError(f"steps_per_epoch={steps_per_epoch}: an epoch needs at least one step")
        first = next(iter(weights.values()))
        self.network, self.loss, self.lr, self.precision = network, loss, lr, precision
        self.weights = {name: value.detach() for name, value in weights.items()}
        self.steps_per_epoch, self.checkpoint = steps_per_epoch, checkpoint
        self.piece = piece or (100 if first.is_cuda else 4)
        self.engine = self.fallback = self.uncaptured = self.unfused = ""
        self._choice: Choice | None = None
        self._runners: dict[tuple[int, ...], Recorded] = {}
        self._limit = self.piece

    def __call__(
        self, inputs: Tensor, labels: Tensor, mask: Tensor | None, distance: Measure, given: Sequence[Tensor] = ()
    ) -> tuple[Tensor, Tensor]:
        """Model inputs (V, U, m, C, H, W) and class indices (V, U, m) to values (V,) and slopes like the inputs.

        U steps, each on a batch of m; an image whose mask (V, U, m) is 0 is not there, and a batch without any image
        is no step. Each tensor of `given` (V, ...) is cut like the victims and handed to `distance` beside the update,
        whose tensors are (victims, ...) and in the order of the weights. Nothing here is recorded by autograd.
        """
        check_call(inputs, labels, mask, given)
        if self._choice is None:
            # Ways are told apart in full precision: rounding to ten bits closes a ReLU here and opens one there.
            with torch.no_grad(), products_in("float32"):
                found = choose(self.network, self.loss, self.weights, self.lr, inputs[0, 0], labels[0, 0])
            self._choice = found
            self.engine, self.fallback, self.unfused = found.engine, found.fallback, found.unfused
        with torch.no_grad(), products_in(self.precision):
            self.piece = self._fitting(len(inputs), inputs.shape[1])
            slopes = torch.empty_like(inputs, memory_format=torch.contiguous_format)

            def work(rows: slice) -> Tensor:
                share = None if mask is None else shares(mask[rows], inputs)
                own = tuple(one[rows] for one in given)
                return self._together(inputs[rows], labels[rows], share, distance, own, slopes[rows])

            values = self._on_cores(work, len(inputs)) if self._workers > 1 else self._in_turn(work, len(inputs))
            return torch.cat(values), slopes

    def _in_turn(self, work: Callable[[slice], Tensor], victims: int) -> list[Tensor]:
        values: list[Tensor] = []
        done = 0
        while done < victims:
            rows = slice(done, min(done + self.piece, victims))
            try:
                values.append(work(rows))
                done = rows.stop
                continue
            except torch.OutOfMemoryError:
                if rows.stop - rows.start == 1:
                    raise
            # Only here the error has let go of what it held.
            self._limit = self.piece = (rows.stop - rows.start) // 2
            self._runners.clear()
            torch.cuda.empty_cache()
        return values

    def _on_cores(self, work: Callable[[slice], Tensor], victims: int) -> list[Tensor]:
        """Pieces side by side, one thread each: on small tensors that is much faster than sharing every operation."""
        before = torch.get_num_threads()

        def alone(first: int) -> Tensor:
            torch.set_num_threads(1)
            with torch.no_grad():
                return work(slice(first, min(first + self.piece, victims)))

        try:
            with ThreadPoolExecutor(self._workers) as pool:
                return list(pool.map(alone, range(0, victims, self.piece)))
        finally:
            torch.set_num_threads(before)

    @property
    def _workers(self) -> int:
        """Threads that pieces are spread over: on a CPU, where the steps touch nothing that they share."""
        on_cpu = not next(iter(self.weights.values())).is_cuda
        return torch.get_num_threads() if on_cpu and isinstance(self._chosen.steps, TiledSteps) else 1

    def _together(
        self,
        inputs: Tensor,
        labels: Tensor,
        share: Tensor | None,
        distance: Measure,
        given: tuple[Tensor, ...],
        slopes: Tensor,
    ) -> Tensor:
        """Forward, distance and back for victims that fit at once; the slopes are written to `slopes`."""
        if _on_gpu(inputs) and not self.uncaptured and not self.fallback:
            try:
                return self._run(self._recorded(inputs, share), inputs, labels, share, distance, given, slopes)
            except RuntimeError as error:  # torch raises many kinds while recording, all with the same way out
                self._runners.clear()
                if isinstance(error, torch.OutOfMemoryError) or isinstance(
                    error.__context__,
                    torch.OutOfMemoryError,  # ends the recording, which then complains on its own
                ):
                    raise torch.OutOfMemoryError(str(error)) from error
                torch.cuda.synchronize()
                self.uncaptured = f"steps are not replayed as a CUDA graph ({first_line(error)})"
        return self._run(Direct(self._chosen.steps), inputs, labels, share, distance, given, slopes)

    def _run(
        self,
        runner: Runner,
        inputs: Tensor,
        labels: Tensor,
        share: Tensor | None,
        distance: Measure,
        given: tuple[Tensor, ...],
        slopes: Tensor,
    ) -> Tensor:
        steps, victims, count = self._chosen.steps, len(inputs), inputs.shape[1]
        per = self._slots(count)
        last = (count - 1) // per * per

        def batch(u: int) -> tuple[Tensor, Tensor, Tensor | None]:
            return inputs[:, u], labels[:, u], None if share is None else share[:, u]

        def first_weights() -> list[Tensor]:
            return steps.load({name: value.expand(victims, *value.shape) for name, value in self.weights.items()})

        starts: dict[int, list[Tensor]] = {}
        runner.begin(first_weights())
        for u in range(count):
            if u % per == 0 and 0 < u < last:
                starts[u] = [one[:victims].clone() for one in runner.state]
            runner.forward(u % per, batch(u))
        end = steps.named([one[:victims] for one in runner.state])
        update = {name: (value - end[name]).div_(self.lr) for name, value in self.weights.items()}
        del end
        values, cotangent = distance(update, given)
        runner.aim(steps.load(cotangent))
        del update, cotangent
        for first in range(last, -1, -per):
            if first < last:
                runner.begin(starts.pop(first) if first else first_weights())
                for u in range(first, first + per):
                    runner.forward(u % per, batch(u))
            for u in reversed(range(first, min(first + per, count))):
                slopes[:, u] = runner.backward(u % per, batch(u))
        return values

    @property
    def _chosen(self) -> Choice:
        assert self._choice is not None
        return self._choice

    def _slots(self, count: int) -> int:
        """How many steps are kept at once."""
        return min(self.steps_per_epoch, count) if self.checkpoint == "epoch" else count

    def _recorded(self, inputs: Tensor, share: Tensor | None) -> Recorded:
        rows, shape = len(inputs), (*inputs.shape[1:], share is not None)
        width = min((w for w, *rest in self._runners if tuple(rest) == shape and rows <= w < 2 * rows), default=rows)
        if (width, *shape) not in self._runners:
            self._runners.clear()  # a recording holds the memory of a whole run: keep one
            self._runners[width, *shape] = Recorded(self._chosen.steps, width, self._slots(inputs.shape[1]))
        return self._runners[width, *shape]

    def _fitting(self, victims: int, count: int) -> int:
        """Victims at once: as many as are estimated to fit, in pieces of the same size."""
        limit = self._limit
        weights = sum(value.numel() * value.element_size() for value in self.weights.values())
        if self._chosen.at_work and not self._runners:
            kept, at_work = self._chosen.kept, self._chosen.at_work
            snapshots = -(-count // self._slots(count)) - 1
            free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
            limit = int(ROOM * free / (kept * self._slots(count) + at_work + (snapshots + 6) * weights))
            limit = self._limit = max(1, min(limit, self._limit))
        pieces = max(-(-victims // limit), min(self._workers, victims))
        return -(-victims // pieces)


def _on_gpu(inputs: Tensor) -> bool:
    return inputs.is_cuda
