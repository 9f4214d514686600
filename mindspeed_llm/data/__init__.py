"""Data: readers, handlers, tokenizer, preprocessing, and the data sets of training."""
