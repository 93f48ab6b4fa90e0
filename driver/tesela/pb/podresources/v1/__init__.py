"""Generated from `proto/podresources/v1`."""
