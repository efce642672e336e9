"""Trainers: RL, SFT and DPO on TRL, with masks over whole conversations."""
