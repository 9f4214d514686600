"""Small inputs that the tests share."""
