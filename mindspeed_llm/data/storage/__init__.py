"""Prepared data on disk: indexed data sets, what lies beside them, and joining them."""
