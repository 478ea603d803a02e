"""Recordings: every frame between a client and an agent in one file, and an agent that plays it back."""
