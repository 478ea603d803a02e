"""What every engine behind a contract must keep, as checks that anyone can run against their own."""
