"""Real agents, run through a real daemon, with fake models; see `__main__`."""
