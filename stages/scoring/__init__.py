"""Test and dev scores: of trained heads, of cosines on graded pairs, and of baselines and controls."""
