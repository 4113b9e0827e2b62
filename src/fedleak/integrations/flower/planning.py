"""The client's own part of a federation's plan: how often it answers, and about which public examples.

A defense of the stage "protocol" changes the plan before a federation begins. A client cannot change the server's plan,
but it can keep to its own: what the plan leaves out, it does not answer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import torch

from fedleak.defenses import Context, ProtocolPlan, label
from fedleak.defenses.compose import Chain, chain
from fedleak.errors import RefusedError
from fedleak.integrations.flower.installed import flower
from fedleak.types import PublicSet

__all__ = ["Promise", "promised"]

AS_ASKED = sys.maxsize


@dataclass(frozen=True)
class Promise:
    """`messages`: how many the client sends in a run. `examples`: the public ones it predicts on; None: all."""

    by: str
    messages: int
    examples: frozenset[int] | None

    @property
    def narrows(self) -> bool:
        return self.examples is not None

    def narrow(self, message: Any) -> None:
        """Strike from a request for predictions the examples that the client does not answer about."""
        config = message.content.config_records.get("config", {})
        if self.examples is None or "public-index" not in config:
            return
        asked = list(config["public-index"])
        left = [number for number in asked if number in self.examples]
        if not left:
            raise RefusedError(
                f"defend({self.by}): none of the {len(asked)} public examples asked about is one that this client "
                "answers about, so nothing is sent; ask about examples of another domain too"
            )
        # A record of its own: in one process all messages of a round may hold the same one.
        message.content["config"] = flower().ConfigRecord({**config, "public-index": left})

    def weights(self, key: str) -> None:
        if self.by:
            raise RefusedError(
                f"defend({self.by}): is about predictions on a public set, and the reply carries weights ({key!r}), "
                "so nothing is sent; use it with exchange (fedmd, dsfl), or take gaussian, clip or sparsify"
            )

    def kept(self, message: Any) -> Any:
        """The answer of a client that has sent all that it promised to send."""
        reason = (
            f"fedleak defend({self.by}): this client has sent {self.messages} of {self.messages} messages and sends no "
            "more in this run; plan as many rounds"
        )
        code = flower("flwr.common.constant").ErrorCode.MOD_FAILED_PRECONDITION
        app = flower()
        return app.Message(app.Error(code, reason), reply_to=message)


def promised(members: Chain, public: PublicSet | None) -> Promise:
    """What the defenses of the plan leave of a run of any length with these public examples."""
    planning = chain(*(member for member in members.members if member.stage == "protocol"))
    if not planning.members:
        return Promise("", AS_ASKED, None)
    # The examples are their own numbers here: what is left of them says which ones are.
    numbered = None if public is None else PublicSet(torch.arange(len(public)), public.labels, public.domains)
    plan: ProtocolPlan = planning.apply(
        ProtocolPlan(AS_ASKED, numbered), Context(stage="protocol", rounds=AS_ASKED), torch.Generator()
    )
    left = None if plan.public is None else frozenset(int(number) for number in plan.public.inputs.tolist())
    whole = public is None or left is None or len(left) == len(public)
    return Promise(label(planning), plan.rounds, None if whole else left)
