"""TextSpace, alone and in Gymnasium's own vector environments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict, Tuple
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.vector.utils import batch_differing_spaces, batch_space, create_shared_memory

from agentgym_env import TextSpace
from agentgym_env.spaces import clean_text
from worlds import Guess


def test_any_unicode_text_up_to_the_length_belongs_to_the_space():
    space = TextSpace(max_length=5)
    assert "" in space and "héllo" in space and "🙂🙂🙂🙂🙂" in space
    assert "sixsix" not in space and 3 not in space and b"abc" not in space


def test_spaces_are_equal_if_their_lengths_are():
    assert TextSpace(5) == TextSpace(5, seed=1) and TextSpace(5) != TextSpace(6)
    assert hash(TextSpace(5)) == hash(TextSpace(5))
    assert TextSpace(5) != "TextSpace(max_length=5)"


def test_sampling_follows_the_seed_and_stays_in_the_space():
    first, second = TextSpace(8, seed=3), TextSpace(8, seed=3)
    samples = [first.sample() for _ in range(50)]
    assert samples == [second.sample() for _ in range(50)]
    assert all(sample in first and sample for sample in samples)


def test_sampling_takes_no_mask():
    with pytest.raises(ValueError, match="no mask"):
        TextSpace().sample(mask=np.ones(3))


def test_a_length_below_one_is_refused():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        TextSpace(0)


def test_lone_surrogates_become_replacement_characters():
    assert clean_text("a\ud800b") == "a\ufffdb"
    assert clean_text("\udc00\ud800") == "\ufffd\ufffd"
    assert clean_text("🙂") == "🙂"


def test_two_surrogates_that_are_a_pair_become_their_character():
    assert clean_text("a\ud83d\ude00b") == "a😀b"
    assert clean_text("\ud83d\ud83d\ude00\ude00") == "\ufffd😀\ufffd"
    # The first and the last character that UTF-16 writes as a pair.
    assert clean_text("\ud800\udc00\udbff\udfff") == "\U00010000\U0010ffff"


def test_a_batch_of_spaces_is_a_tuple_that_samples_different_texts():
    batch = batch_space(TextSpace(seed=1), 4)
    assert isinstance(batch, Tuple) and batch.spaces == (TextSpace(),) * 4
    sample = batch.sample()
    assert sample in batch and len(set(sample)) == 4


def test_spaces_of_different_lengths_can_be_batched():
    batch = batch_differing_spaces([TextSpace(3), TextSpace(4)])
    assert ("abc", "abcd") in batch and ("abcd", "abc") not in batch


def texts_of(envs: gymnasium.vector.VectorEnv) -> list[tuple[str, ...]]:
    try:
        first, _ = envs.reset(seed=5)
        second, *_ = envs.step(("1", "2", "3"))
        return [first, second]
    finally:
        envs.close()


def expected_texts() -> list[tuple[str, ...]]:
    envs = [Guess() for _ in range(3)]
    first = tuple(env.reset(seed=5 + i)[0] for i, env in enumerate(envs))
    return [first, tuple(env.step(str(i + 1))[0] for i, env in enumerate(envs))]


def test_gymnasiums_synchronous_vector_gives_the_right_texts():
    assert texts_of(SyncVectorEnv([Guess] * 3)) == expected_texts()


def test_gymnasiums_asynchronous_vector_gives_the_right_texts_without_shared_memory():
    assert (
        texts_of(AsyncVectorEnv([Guess] * 3, shared_memory=False, context="spawn"))
        == expected_texts()
    )


def test_gymnasiums_asynchronous_vector_refuses_shared_memory_instead_of_giving_garbage():
    with pytest.raises(ValueError, match="shared_memory=False"):
        AsyncVectorEnv([Guess] * 3, shared_memory=True)


def test_shared_memory_is_refused_inside_another_space_too():
    with pytest.raises(gymnasium.error.CustomSpaceError, match="pass shared_memory=False"):
        create_shared_memory(Dict(text=TextSpace()), n=2)
