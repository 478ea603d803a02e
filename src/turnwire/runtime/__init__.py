"""Making it run: the session loop, following, the clock, and the node that assembles them."""
