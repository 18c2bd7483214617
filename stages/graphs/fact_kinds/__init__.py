"""Kinds of facts put before questions: one file each."""
