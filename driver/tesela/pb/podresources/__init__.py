"""Generated from `proto/podresources`."""
