"""Generated from `proto/dra/v1beta1`."""
