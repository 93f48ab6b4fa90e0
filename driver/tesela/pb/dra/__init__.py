"""Generated from `proto/dra`."""
