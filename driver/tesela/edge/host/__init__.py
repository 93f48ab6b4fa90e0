"""The host under the driver: /proc, /sys, device nodes and the host's nvidia-smi, read through configurable roots."""
