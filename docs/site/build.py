"""Build the site: `python -m docs.site.build [FOLDER]`, by default into build/docs.

Ends with exit code 1 after any warning: a broken link, a page that nothing leads to, a docstring that cannot
be read.
"""

import sys
from pathlib import Path

from sphinx.cmd.build import build_main

from docs.site.pages import ROOT, write_pages


def build(folder: Path) -> int:
    """Write pages and site below `folder`; returns the exit code."""
    sources = folder.with_name(f"{folder.name}-pages")
    write_pages(sources)
    return build_from(sources, folder)


def build_from(sources: Path, folder: Path) -> int:
    """The site of a folder of pages; returns the exit code."""
    flags = ["-q", "-W", "--keep-going", "-b", "html", "-c", str(ROOT / "docs" / "site")]
    read = folder.with_name(f"{folder.name}-read")
    return build_main([*flags, "-d", str(read), str(sources), str(folder)])


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1] if len(sys.argv) > 1 else "build/docs")))
