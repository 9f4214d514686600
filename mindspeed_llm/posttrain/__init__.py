"""Tuning: supervised fine-tuning and preference optimisation, on the loop of pretraining."""
