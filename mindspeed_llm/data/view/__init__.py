"""``mindspeed-llm data``: samples as they are trained on, and their statistics."""
