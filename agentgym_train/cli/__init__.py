"""The commands of the trainer, one file each; torch is loaded by those that need it."""
