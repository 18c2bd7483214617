"""From an experiment's file to its fields, with errors that name the field."""
