"""Why a node would run, or is found: what changed since the nearest earlier artifact."""
