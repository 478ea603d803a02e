"""Talking to one peer: frames in order."""
