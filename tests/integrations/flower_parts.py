"""A Flower federation inside one process, for tests of what is recorded: no Ray, no network, no other process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from torch import nn
from torch.nn import functional as F

from fedleak.integrations.flower.installed import identify

identify()

Content = Callable[[nn.Module, int], RecordDict]


class LocalGrid(Grid):
    """Runs a ClientApp for every node in turn."""

    def __init__(self, app: ClientApp, nodes: int = 2) -> None:
        self.app = app
        self.contexts = {
            number + 101: Context(
                run_id=1,
                node_id=number + 101,
                state=RecordDict(),
                run_config={},
                node_config={"partition-id": number, "num-partitions": nodes},
            )
            for number in range(nodes)
        }

    def set_run(self, run: Any) -> None:
        self._run = run

    @property
    def run(self) -> Any:
        return self._run

    def create_message(self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: Any = None) -> Any:
        raise AssertionError("strategies make their own messages")

    def get_node_ids(self) -> list[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        raise AssertionError("strategies send and receive")

    def pull_messages(self, message_ids: Iterable[str]) -> list[Any]:
        raise AssertionError("strategies send and receive")

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> list[Any]:
        # The last node answers first: the order of arrival is nobody's to choose.
        return [self.app(m, self.contexts[m.metadata.dst_node_id]) for m in reversed(list(messages))]


def net() -> nn.Module:
    """Buffers between the parameters, as BatchNorm puts them."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3))


def plain() -> nn.Module:
    """Without buffers: the robust strategies of flwr 1.24 cannot average BatchNorm's count, an array without axes."""
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.Tanh(), nn.Linear(6, 3))


def first(make: Callable[[], nn.Module] = net, seed: int = 0) -> ArrayRecord:
    torch.manual_seed(seed)
    return ArrayRecord(make().state_dict())


def private(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(number)
    return torch.rand(3 + number, 1, 4, 4, generator=rng), torch.arange(3 + number) % 3


def usual(module: nn.Module, samples: int) -> RecordDict:
    return RecordDict(
        {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": samples, "loss": 0.5})}
    )


def client_app(
    make: Callable[[], nn.Module] = net,
    mods: list[Any] | None = None,
    content: Callable[[nn.Module, int, int, int], RecordDict] | None = None,
) -> ClientApp:
    """Trains one step. `content(module, samples, partition, round)` replaces what is sent."""
    app = ClientApp(mods=mods or [])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        module = make()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        partition, config = int(context.node_config["partition-id"]), message.content["config"]
        inputs, labels = private(partition)
        loss = F.cross_entropy(module(inputs), labels)
        loss.backward()
        torch.optim.SGD(module.parameters(), lr=float(config.get("learning-rate", 0.1))).step()
        if content is None:
            sent = usual(module, len(inputs))
        else:
            sent = content(module, len(inputs), partition, int(config["server-round"]))
        return Message(sent, reply_to=message)

    return app


def config(**values: Any) -> ConfigRecord:
    return ConfigRecord({key.replace("_", "-"): value for key, value in values.items()})
