"""Fuzz targets for the code that parses bytes from a peer, and the program that runs them (`make fuzz`)."""
