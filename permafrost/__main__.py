"""`python -m permafrost`, for where the command is not on the path."""

from permafrost.flows.cli import main

if __name__ == "__main__":
    main()
