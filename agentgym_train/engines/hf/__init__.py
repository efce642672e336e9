"""HFEngine: generation with transformers, from the trainer's own model."""
