"""One run against others."""
