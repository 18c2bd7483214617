"""What is computed: corpus, extraction, heads, training, evaluation, report. Knows no orchestrator."""
