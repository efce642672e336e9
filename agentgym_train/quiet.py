"""Keeps the screen for the run: a library's word on its own future is no news to our user."""

from __future__ import annotations

import logging
import os
import warnings

from transformers import logging as hf_logging


def quiet_libraries() -> None:
    """Silence the libraries of training: bars of their own, advice, future warnings."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message=".*pin_memory.*")
    hf_logging.set_verbosity_error()
    hf_logging.disable_progress_bar()
    for name in ("accelerate", "trl"):
        logging.getLogger(name).setLevel(logging.ERROR)
