"""Generation engines: token ids in, token ids out."""
