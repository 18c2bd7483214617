"""What runs, in which order, on which engine: the pipeline, the command line and the deployments."""
