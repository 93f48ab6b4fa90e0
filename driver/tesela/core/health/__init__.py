"""Health of GPUs and partitions: which signals there are, what each means, what follows. Pure: no NVML, no clock."""
