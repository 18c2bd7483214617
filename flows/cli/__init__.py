"""The command line."""

from flows.stopping import STOP


def main() -> None:
    """Entry point of the console script; its exit codes are in `flows.cli.app`."""
    with STOP.listening():
        try:
            # Imported here: it takes a while, in which Ctrl-C must be heard.
            from flows.cli import app

            app.main()
        except BaseException as end:
            finished = isinstance(end, SystemExit) and not end.code
            # Whatever failed because the process was asked to stop is no news.
            if STOP.asked and not finished:
                STOP.leave()
            raise
