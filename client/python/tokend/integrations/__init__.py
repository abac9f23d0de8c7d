"""Adapters: one module per trainer."""
