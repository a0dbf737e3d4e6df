"""What would not fit into the one file of an experiment."""
