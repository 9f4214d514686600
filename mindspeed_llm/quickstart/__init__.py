"""The quickstart: a real small model through the whole chain, on any machine.

``smollm2.py`` brings the model, ``story.py`` is the chain, ``curve.py`` draws the loss.
"""
