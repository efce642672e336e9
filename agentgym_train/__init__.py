"""The trainer: multi-turn RL of language models on text environments, on TRL and Accelerate.

Importing this package is light; torch is loaded when training begins.
"""
