"""Server fleets on Ray: `agentgym up`, `status` and `down`, and the addresses `ray://NAME`."""
