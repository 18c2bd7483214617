"""The command line."""

from permafrost.flows.stopping import STOP


def main() -> None:
    """Entry point of the console script; its exit codes are in `flows.cli.app`."""
    with STOP.listening():
        # Imported here: it takes a while, in which Ctrl-C must be heard.
        from permafrost.flows.cli import app

        app.main()
