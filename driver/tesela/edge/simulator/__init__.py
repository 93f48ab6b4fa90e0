"""A machine of simulated NVIDIA GPUs that obeys MIG's rules: models, state, faults, host tree and its wire protocol.

It is a backend of the NVML port like the real library, not a test double: the demo, the command line and the tests on a
real cluster run on it. Nothing that real NVML cannot answer may be added to `nvml.SimulatedNvml`; what only a simulator
can do (lose a GPU, reboot, inject a fault) belongs to `machine.Machine` and to `tesela sim`.
"""
