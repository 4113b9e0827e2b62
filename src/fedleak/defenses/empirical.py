"""What defenses without a proof share: they say so, and refuse an epsilon with the reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import ValidationError, model_validator
from pydantic_core import ArgsKwargs, InitErrorDetails, PydanticCustomError

from fedleak.components import component
from fedleak.defenses.base import Defense, Guarantee, Plan
from fedleak.errors import RefusedError
from fedleak.types import Payload, Predictions

__all__ = ["PROVEN", "Empirical", "epsilon_of", "predictions_of", "without_epsilon"]


PROVEN = "use gaussian or laplace for a proof"


def without_epsilon(given: Any, message: str) -> Any:
    """For a `model_validator(mode="before")`: whoever asks a defense for an epsilon is told why it cannot be set, not
    that the word is unknown."""
    values = given.kwargs if isinstance(given, ArgsKwargs) else given
    if not isinstance(values, Mapping) or not (asked := [key for key in ("epsilon", "delta") if key in values]):
        return given
    problem = PydanticCustomError("rule", "{message}", {"message": message})
    entries = [InitErrorDetails(type=problem, loc=(key,), input=values[key]) for key in asked]
    raise ValidationError.from_exception_data("defense", entries)


@component
class Empirical:
    """A defense of predictions that proves nothing, and why."""

    reads: ClassVar[tuple[type, ...]] = (Predictions,)
    """The payloads it can act on; at the stage "protocol", those of the protocols that it makes sense for."""
    uses: ClassVar[tuple[str, ...]] = ()
    """What of the context (at the stage "protocol": of the plan) it cannot do without."""
    why: ClassVar[str] = ""
    normalises: ClassVar[bool] = False
    """It turns any numbers into probabilities that sum to one, where probabilities are sent."""

    @model_validator(mode="before")
    @classmethod
    def _no_epsilon(cls, given: Any) -> Any:
        return without_epsilon(given, f"this defense proves no differential privacy: {cls.why}; {PROVEN}")

    def guarantee(self, plan: Plan) -> Guarantee:
        return Guarantee("empirical", f"empirical: {self.why}")


def epsilon_of(defense: Defense, plan: Plan) -> float:
    """The epsilon that a defense proves in such a deployment, or RefusedError with the reason why it proves none."""
    proven = defense.guarantee(plan)
    if proven.kind != "dp" or proven.epsilon is None:
        raise RefusedError(
            f"epsilon of {type(defense).__name__}: nothing is proven ({proven.statement}); "
            "put gaussian or laplace noise on probabilities, or on what a clip has bounded"
        )
    return proven.epsilon


def predictions_of(payload: Payload, name: str) -> Predictions:
    """The payload, where it holds predictions."""
    if not isinstance(payload, Predictions):
        raise RefusedError(
            f"{name}: acts on predictions, and this protocol sends {type(payload).__name__.lower()}; use it with a "
            "protocol that sends predictions (fedmd, fedgems, dsfl), or choose clip, sparsify or noise"
        )
    return payload
