"""Mixture of experts: routing as the published models do it, and what Megatron's lacks for it."""
