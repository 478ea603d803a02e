"""Settings: declared once, read from flags, variables, a file and defaults, in this order."""
