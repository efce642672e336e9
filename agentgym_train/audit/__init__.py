"""`agentgym audit`: checks that a chat model is trained on exactly the tokens that it sampled."""
