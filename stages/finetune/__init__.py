"""Fine-tuning: training with the backbone in the loop, frozen or with low-rank adapters."""
