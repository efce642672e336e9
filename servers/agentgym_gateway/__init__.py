"""An OpenAI-compatible endpoint in front of an engine, which records what black-box agents do."""
