"""Scores, their files and their uncertainty: what every stage that scores writes and a report reads.

Ground of `stages/`: no torch, no corpus, no backbone.
"""
