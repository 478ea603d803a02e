"""The parts of the scripted agent: commands, sessions, turns, dialects, and the host."""
