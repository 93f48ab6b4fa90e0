"""Generated from `proto/pluginregistration`."""
