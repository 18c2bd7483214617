"""The command line."""

from flows.stopping import STOP


def main() -> None:
    """Entry point of the console script; its exit codes are in `flows.cli.app`."""
    with STOP.listening():
        # Imported here: it takes a while, in which Ctrl-C must be heard.
        from flows.cli import app

        app.main()
