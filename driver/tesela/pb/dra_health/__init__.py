"""Generated from `proto/dra_health`."""
