"""The record of every run, and what is looked up in it."""
