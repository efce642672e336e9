"""How each of TRL's losses adds up when a batch is computed in parts."""

from __future__ import annotations

from agentgym_env.errors import BadRequest

MEANS_OVER_EPISODES = {"grpo", "sapo", "dr_grpo", "luspo"}
"""TRL's losses that divide by the number of episodes."""
_SUMS_OVER_TOKENS = {"dapo", "cispo", "vespo"}


def weight_of_part(
    loss_type: str, *, episodes: int, all_episodes: int, tokens: float, all_tokens: float
) -> float:
    """What TRL's loss of some of a batch's episodes is multiplied by, for the parts to sum up.

    With l(i, t) the loss of token t of episode i, M its mask, B all episodes and N all trained
    tokens of the step:

    - `grpo` (arXiv:2402.03300; GSPO, arXiv:2507.18071, is that with an episode's ratio), `sapo`
      (arXiv:2511.20347), `luspo` (arXiv:2602.05261) and `dr_grpo` (arXiv:2503.20783) are means
      over episodes, 1/B sum_i f(l(i, .)): a part of b episodes counts b/B.
    - `dapo` (arXiv:2503.14476), `cispo` (arXiv:2506.13585) and `vespo` (arXiv:2602.10693) are
      1/N sum_it M l with the step's own N already: parts just add.
    - `bnpo` is that with the N of whatever batch it is given, which would make
      the step depend on the cut: a part of n tokens counts n/N, and the whole is `dapo`.
    """
    if loss_type in MEANS_OVER_EPISODES:
        return episodes / all_episodes
    if loss_type in _SUMS_OVER_TOKENS:
        return 1.0
    if loss_type == "bnpo":
        return tokens / max(all_tokens, 1.0)
    known = sorted(MEANS_OVER_EPISODES | _SUMS_OVER_TOKENS | {"bnpo"})
    raise BadRequest(f"no loss {loss_type!r}; there are {', '.join(known)}")
