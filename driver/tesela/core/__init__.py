"""Pure decisions on frozen dataclasses: state in, decision out.

Nothing here reads a file, a clock, the network or NVML, and nothing here starts a thread; import-linter holds that.
"""
