"""What of a backbone is trained, one file each."""
