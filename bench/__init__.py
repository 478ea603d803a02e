"""Measurements of the daemon, the SDK and the page (`make bench`, `make bench-compare`); see docs/bench.md."""
