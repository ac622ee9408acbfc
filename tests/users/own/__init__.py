"""A user's own package of stages, as tests need them."""
