"""Readers: event streams that resume from any cursor, written to in one pass."""
