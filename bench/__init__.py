"""Measurements. `make bench` runs them; nothing here is a test."""
