"""From the durable inventory to the specs of a pool's ResourceSlices: pure rendering, nothing about what the API holds.

`offer` decides which devices a GPU publishes, `device` and `counters` write them down, `pool` packs them into slices
within the API's limits. Comparing with the API is `core/publication`; writing is `plugin/publish`.
"""
