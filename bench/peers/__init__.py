"""Programs that `bench.stdio` starts: one agent, and one client per SDK. Each client prints its own numbers."""
