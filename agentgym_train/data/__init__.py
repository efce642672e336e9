"""Data: episodes that are collected, converted, tokenized and paired for training."""
