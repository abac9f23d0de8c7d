"""Adapters: one module per trainer; shared.py."""
