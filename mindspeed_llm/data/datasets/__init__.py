"""Prepared data as training sees it: data sets, their order, batches."""
