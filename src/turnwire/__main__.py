"""`python -m turnwire` is the command line."""

from turnwire.cli.main import main

if __name__ == "__main__":
    main()
