"""For every tier: hypothesis judges rules, not this machine's speed, so an example may take as long as it takes."""

from hypothesis import settings

settings.register_profile("tesela", deadline=None)
settings.load_profile("tesela")
