"""What a flow that Prefect runs does beside its work."""
