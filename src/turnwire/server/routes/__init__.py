"""The routes, one noun per file. Each file ends in the table of its endpoints."""
