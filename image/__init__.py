"""Builds the container image: locked wheels, a Debian tree, a container engine, what is in the result."""
