"""Adapters: one module per trainer; shared.py; and jax.py, a group of processes."""
