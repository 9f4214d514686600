"""``preprocess``: records of files to Megatron's indexed data sets."""
