"""Tesela: a DRA driver for NVIDIA GPUs and their MIG partitions.

`core` decides, `edge` touches one foreign thing each, `plugin` and `cli` join them; `docs/architecture.md` draws it.
"""

__version__ = "0.1.0"
