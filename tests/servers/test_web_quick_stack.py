"""The stack that Playwright asks for in every call."""

import inspect

from agentgym_servers.web.chromium.quick_stack import quick_stack


def test_it_names_the_frames_that_inspect_does():
    quick, slow = quick_stack(), inspect.stack(0)
    assert len(quick) > 5
    assert [info[:4] for info in quick] == [info[:4] for info in slow]
    assert quick[0].function == "test_it_names_the_frames_that_inspect_does"
