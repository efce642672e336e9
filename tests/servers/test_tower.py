"""The tower: its rules, its expert, and that its held-out towers show nothing seen in training."""

from agentgym_servers.worlds.tower import DOORS, FLOORS, TOWERS, Tower, door_of


def climbed(task: str) -> list[str]:
    """The observations of the expert's episode."""
    env = Tower()
    observation, _ = env.reset(seed=0, options={"task": task})
    seen, rewards, ended = [observation], [], False
    while not ended:
        observation, reward, ended, _, info = env.step(env.expert_action())
        seen.append(observation)
        rewards.append(reward)
    assert info["success"] and rewards == [0.0] * (len(rewards) - 1) + [1.0]
    return seen


def test_the_expert_takes_one_turn_per_floor_and_no_observation_is_in_both_splits():
    tasks, seen = Tower().tasks, {}
    for split in TOWERS:
        assert len(tasks.split(split)) == TOWERS[split] * len(FLOORS)
        episodes = {task: climbed(task) for task in tasks.split(split)}
        for task, episode in episodes.items():
            floors = int(task.split("-")[1])
            assert len(episode) == floors + 1 and tasks.category(task) == f"{floors} floors"
        assert len({tuple(episode) for episode in episodes.values()}) == len(episodes)
        seen[split] = {text for episode in episodes.values() for text in episode[:-1]}
    assert not seen["train"] & seen["test"]
    signs = {split: {text.split()[-1] for text in texts} for split, texts in seen.items()}
    assert signs["train"] == signs["test"], "each sign can be learned"


def test_the_right_door_leads_up_and_the_others_one_floor_down():
    env = Tower()
    task = env.tasks.split("test")[0]
    observation, _ = env.reset(seed=0, options={"task": task})
    for floor, door in ((1, "up"), (2, "up"), (3, "down"), (2, "down"), (1, "down"), (1, "up")):
        assert observation.startswith(f"Floor {floor} of 4, sign: ")
        right = door_of(observation.split()[-1])
        action = right if door == "up" else next(door for door in DOORS if door != right)
        observation, reward, ended, _, info = env.step(action)
        assert (reward, ended, info["invalid_action"]) == (0.0, False, False)
    assert observation.startswith("Floor 2 of 4")
    same, _, _, _, info = env.step("jump")
    assert observation in same and info["invalid_action"]
