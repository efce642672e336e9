"""A plain agent: it asks a model for a command, sends it to the environment, and repeats.

It knows nothing about training. The model is an OpenAI client's, and the environment is an address:

    agentgym train examples/agents/plain.yaml
"""

import json
import os
import urllib.request
from types import SimpleNamespace

from openai import OpenAI


def step(episode, action: str) -> dict:
    """Take an action in the environment."""
    request = urllib.request.Request(
        f"{episode.base_url}/episode/step",
        json.dumps({"action": action}).encode(),
        {"Authorization": f"Bearer {episode.api_key}"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def play(episode) -> None:
    """Play one episode; `episode` says where the model and the environment are."""
    messages = [{"role": "user", "content": episode.observation}]
    with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
        while True:
            reply = client.chat.completions.create(model="policy", messages=messages)
            command = reply.choices[0].message.content or ""
            seen = step(episode, command)
            if seen["over"]:
                return
            messages.append({"role": "assistant", "content": command})
            messages.append({"role": "user", "content": seen["observation"]})


if __name__ == "__main__":
    names = {"base_url": "OPENAI_BASE_URL", "api_key": "OPENAI_API_KEY"}
    names["observation"] = "AGENTGYM_OBSERVATION"
    play(SimpleNamespace(**{name: os.environ[given] for name, given in names.items()}))
