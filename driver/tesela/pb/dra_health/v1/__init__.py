"""Generated from `proto/dra_health/v1`."""
