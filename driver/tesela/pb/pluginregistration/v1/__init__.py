"""Generated from `proto/pluginregistration/v1`."""
