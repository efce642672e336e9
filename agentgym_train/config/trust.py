"""Which settings of a training run a run folder of somebody else may set without `--trust`.

Numbers, choices among few texts, and the fields listed here are harmless whatever their value.
Every other field of the configs, and of the settings within them, needs trust where its value is
neither the default nor one that is known.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, get_origin

from agentgym_env.trust import KEYS, leaves, names_in
from agentgym_train.config.checks import kinds_of, type_hints
from agentgym_train.config.engines import ENGINES
from agentgym_train.config.read import CONFIGS, DEFAULT
from agentgym_train.config.trainer_args import LOCAL
from agentgym_train.rollout.contrast import SAMPLERS
from agentgym_train.rollout.gates import GATES
from agentgym_train.rollout.horizon import SCHEDULES

HARMLESS: Final = frozenset(
    {
        # A model's own code never runs, and a resumed run writes to the folder that is named.
        "method", "model", "output_dir", "data",
        "action_format", "chat_template_kwargs", "importance_sampling", "instruction", "split",
        "train_outcomes",
    }
)  # fmt: skip
"""Texts and mappings of a config that are harmless, as numbers and choices among few texts are."""

NESTED: Final[Mapping[str, frozenset[str]]] = {
    "engine": frozenset({"attention_backend", "dtype"}),
    "trainer_args": LOCAL,
    "lora": frozenset(
        {
            "alora_invocation_tokens", "alpha_pattern", "bias", "ensure_weight_tying",
            "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights",
            "layer_replication", "layers_pattern", "layers_to_transform", "lora_alpha",
            "lora_bias", "lora_dropout", "modules_to_save", "qalora_group_size", "r",
            "rank_pattern", "target_modules", "target_parameters", "task_type",
            "trainable_token_indices", "use_dora", "use_qalora", "use_rslora",
        }
    ),
}  # fmt: skip
"""The same of settings within. `trainer_args` has what TRL's configs take here, `lora` what PEFT's
take."""

_KNOWN: Final[Mapping[str, re.Pattern[str]]] = {
    "admission": re.compile("|".join(GATES)),
    "agent": re.compile(r"plain|react|act_only|plan_then_act|reflect|(window|summary)(:\d+)?"),
    "algorithm": re.compile(r"\w+"),
    "attention": re.compile(r"eager|sdpa|flex_attention|flash_attention_[234]"),
    "engine": re.compile("|".join(ENGINES)),
    "horizon": re.compile("|".join(SCHEDULES)),
    "sampler": re.compile("|".join(SAMPLERS)),
    "trainer_args.report_to": re.compile("none|tensorboard"),
}
"""Texts that stand for a part of this package, or for nothing outside of it; of a setting with a
type, the types."""
_SERVED: Final = ("vllm", "openai")
"""Kinds of policies with an address."""
_OFF: Final = ("false", "none", "", "0", "no", "off")
"""Values of a switch that libraries read as off; some take words."""


def names_in_run(values: Mapping[str, Any], keys: Collection[str] | None = None) -> dict[str, str]:
    """What a stored config sets and only you may set, by place, such as `lora.revision`.

    `keys` are the keys that are looked at, by default all. Keys that no config has are left out:
    making a config of the values rejects them.
    """
    kind: Any = CONFIGS.get(str(values.get("method", DEFAULT)), CONFIGS[DEFAULT])
    found: dict[str, str] = {}
    hints, defaults = type_hints(kind), _defaults(kind)
    for key, value in values.items():
        is_asked = key in defaults and (keys is None or key in keys)
        if is_asked and value not in (None, defaults[key]) and not is_harmless(key, hints[key]):
            found |= _names_of(key, value, values)
    return found


def is_harmless(name: str, hint: Any, listed: Collection[str] = HARMLESS) -> bool:
    """Whether a field of this name and type is harmless whatever its value."""
    return name in listed or all(
        kind in (int, float, bool, NoneType)
        or get_origin(kind) is Literal
        or (is_dataclass(kind) and all(is_harmless(*f) for f in type_hints(kind).items()))  # type: ignore[arg-type]
        for kind in kinds_of(hint)
    )


def names_in_envs(envs: Any, keys: Collection[str] = KEYS) -> dict[str, str]:
    """The same of these keys of the entries of `envs`, by place, such as `envs[0].env`."""
    found: dict[str, str] = {}
    for number, world in enumerate(envs if isinstance(envs, list | tuple) else ()):
        if isinstance(world, Mapping):
            found |= names_in(world, f"envs[{number}].", keys)
            horizon = world.get("horizon")
            if (
                isinstance(horizon, Mapping)
                and "type" in horizon
                and not is_known("horizon", horizon)
            ):
                found |= leaves(f"envs[{number}].horizon.type", horizon["type"])
    return found


def trust_option(settings: Mapping[str, Any]) -> str:
    """The option that a command needs to use these settings from a run folder, or nothing."""
    return " --trust" if names_in_run(settings) else ""


def resume_command(run: Path, settings: Mapping[str, Any]) -> str:
    """The command that resumes a run."""
    return f"agentgym train --resume {run}{trust_option(settings)}"


def is_known(place: str, value: Any) -> bool:
    """Whether a text at a place, or the type of a setting, stands for a part of this package."""
    if isinstance(value, Mapping):
        value = value.get("type")  # without one, a mapping may name a program
    return isinstance(value, str) and _KNOWN[place].fullmatch(value) is not None


def _names_of(key: str, value: Any, values: Mapping[str, Any]) -> dict[str, str]:
    """The same of one key, which is not harmless."""
    if key in KEYS:
        return names_in(values, keys=[key])
    if key == "envs":
        return names_in_envs(value)
    if key == "eval":
        return _addresses(value)
    is_mapping = isinstance(value, Mapping)
    if key == "horizon" and not (is_mapping and "type" in value):
        return {}
    known = key in _KNOWN and is_known(key, value)
    if is_mapping and (key in ("lora", "trainer_args") or (key == "engine" and known)):
        return _names_within(key, value)
    if known:
        return {}
    if key in _KNOWN and key != "agent" and is_mapping:
        return leaves(f"{key}.type", value.get("type", ""))  # its arguments are that code's
    return leaves(key, value)


def _addresses(evaluation: Any) -> dict[str, str]:
    """The policies of `eval.compare` that are somewhere else; a model is harmless, as `model` is.

    What is no mapping or no list of texts is rejected when a config is made of it.
    """
    compared = evaluation.get("compare") if isinstance(evaluation, Mapping) else None
    texts = compared if isinstance(compared, list) else []
    return {
        f"eval.compare[{number}]": text
        for number, text in enumerate(map(str, texts))
        if any(f"{kind}:" in text for kind in _SERVED)
    }


def _names_within(group: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The same of settings within settings."""
    kinds: Iterable[Any] = ENGINES.values() if group == "engine" else ()
    hints = {"type": NoneType, **{k: h for kind in kinds for k, h in type_hints(kind).items()}}
    found: dict[str, str] = {}
    for key, value in values.items():
        place = f"{group}.{key}"
        if is_harmless(key, hints.get(key, Any), NESTED[group]):
            continue
        for at, leaf in leaves(place, value).items():
            # The libraries' switches, but not ours: a host named "no" is a host.
            is_off = group in ("trainer_args", "lora") and leaf.lower() in _OFF
            if not is_off and not (place in _KNOWN and is_known(place, leaf)):
                found[at] = leaf
    return found


def _defaults(kind: type) -> dict[str, Any]:
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(kind)
    }
