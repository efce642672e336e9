"""`agentgym audit`: proves that what a chat model samples is exactly what it is trained on."""
