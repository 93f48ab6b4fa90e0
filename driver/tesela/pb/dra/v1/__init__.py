"""Generated from `proto/dra/v1`."""
