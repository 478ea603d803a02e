"""REST routes, one noun per file. Each file ends with the table of its endpoints."""
