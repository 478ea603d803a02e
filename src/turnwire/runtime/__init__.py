"""The session loop, followers, and the node that assembles them."""
