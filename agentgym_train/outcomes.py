"""Which endings of an episode train. Knows nothing about tensors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, get_args

from agentgym_env.errors import BadRequest
from agentgym_env.failures import TEACHES, Outcome

TRUNCATED: Final[frozenset[str]] = frozenset({"horizon", "token_budget"})
"""The endings that cut off an episode which the world would have let go on."""


def trained_outcomes(names: Iterable[str]) -> frozenset[str]:
    """The outcomes whose episodes are in the loss and in their group's baseline.

    Leaving one out, such as `horizon`, drops its episodes from both, as if they had not been
    played. A lost episode can not be chosen: it tells nothing about the policy.
    """
    chosen = frozenset(names)
    unknown = sorted(chosen - set(get_args(Outcome)))
    if unknown:
        raise BadRequest(
            f"no outcome {', '.join(unknown)}; there are {', '.join(get_args(Outcome))}"
        )
    lost = sorted(chosen - TEACHES)
    if lost:
        raise BadRequest(
            f"{', '.join(lost)} can not train: the episode was lost and its reward is unknown. "
            f"Choose from {', '.join(o for o in get_args(Outcome) if o in TEACHES)}"
        )
    if not chosen:
        raise BadRequest("no outcome trains; name at least one, such as success and failure")
    return chosen
