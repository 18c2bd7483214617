"""The report: one self-contained HTML page, its figures, and the same results as data."""
